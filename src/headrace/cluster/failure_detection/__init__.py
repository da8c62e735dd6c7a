"""Failure detection: probes of brokers, verdicts about them, and responses that wait for one."""
