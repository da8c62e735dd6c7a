"""A small Kafka client: a sans-IO core, an asyncio shell and a blocking shell."""
