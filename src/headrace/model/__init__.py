"""Plain facts shared by every room: topics, partitions, epochs, error codes. No I/O."""
