"""Segments, indexes, recovery, retention and compaction of one broker's partitions."""
