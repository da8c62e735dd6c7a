"""Runs the processes of a local cluster: brokers and ZooKeeper nodes."""
