"""Failure detection: probes brokers, decides which are live, delays responses about failed ones."""
