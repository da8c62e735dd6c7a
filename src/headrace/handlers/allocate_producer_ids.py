"""AllocateProducerIds, version 0: return a block of producer ids to a broker. Brokers only."""

from headrace.requests.broker_to_controller import handle, refuse

__all__ = ["handle", "refuse"]
