"""The settings table, and everything that is derived from it."""
