"""Failure detection: probes of brokers, decisions about them, and responses that wait for one."""
