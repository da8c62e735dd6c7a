"""The producer: batches, partitioner, producer id, Produce requests. Pure."""
