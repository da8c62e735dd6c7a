"""Processes of this machine that a cluster is made of: children, Java, a local ZooKeeper."""
