"""The consumer group protocol (KIP-848): state, decisions, assignors, conversion. Pure."""
