"""The storage engine: segments, indexes, recovery, retention, compaction, data directory."""
