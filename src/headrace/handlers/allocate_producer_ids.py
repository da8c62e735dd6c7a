"""AllocateProducerIds, version 0: a broker asks for a block of ids. Between brokers alone."""

from headrace.handlers.alter_partition import handle, refuse

__all__ = ["handle", "refuse"]
