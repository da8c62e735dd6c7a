"""Consumer groups: members, the partitions that they own, and committed offsets."""
