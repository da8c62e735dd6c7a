"""Work that makes a log durable and keeps it small: syncs, checkpoints, retention, truncation."""
