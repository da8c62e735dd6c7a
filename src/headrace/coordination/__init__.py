"""The store for cluster state: its interface, ZooKeeper, and an embedded one for one broker."""
