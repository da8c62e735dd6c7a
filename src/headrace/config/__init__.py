"""The settings table, and all that reads it: files, topics, descriptions, changes. No I/O."""
