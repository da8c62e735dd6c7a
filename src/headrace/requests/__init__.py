"""Code that several APIs share: dispatch, contexts, forwarding, look-ups, parts of responses."""
