"""The table of settings, and the code that reads, describes and changes them. No I/O."""
