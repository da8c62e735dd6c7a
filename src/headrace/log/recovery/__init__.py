"""Code that reads complete logs: recovery after a crash, checks, and the search for damage."""
