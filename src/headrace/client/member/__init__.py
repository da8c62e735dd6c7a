"""A member of a consumer group, in both protocols. Pure."""
