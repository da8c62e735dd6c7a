"""The store port with ZooKeeper's semantics, and its implementations."""
