"""AllocateProducerIds, version 0: return a block of producer ids to a broker. Brokers only."""

from headrace.handlers.alter_partition import handle, refuse

__all__ = ["handle", "refuse"]
