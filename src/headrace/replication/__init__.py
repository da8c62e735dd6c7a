"""Partitions as this broker serves them: what is appended, what is committed, who waits."""
