"""AllocateProducerIds, version 0: return a block of producer ids to a broker. Brokers only.

- The controller responds, to the registered incarnation of a broker (STALE_BROKER_EPOCH).
- Versions: 0.
"""

from headrace.requests.broker_to_controller import error_response, handle

__all__ = ["error_response", "handle"]
