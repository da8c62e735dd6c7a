"""The partitions of this broker: appends, replication, commits, and waiting requests."""
