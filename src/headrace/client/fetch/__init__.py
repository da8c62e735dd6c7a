"""The consumer: positions, Fetch requests, chunks of records. Pure."""
