"""A data directory: its logs, its files outside of partitions, and its incarnation."""
