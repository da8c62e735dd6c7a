"""Compaction: which logs, which records stay, and how the result replaces segments."""
