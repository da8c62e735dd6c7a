"""Compaction: selects logs and the records to keep, and replaces segments by compacted ones."""
