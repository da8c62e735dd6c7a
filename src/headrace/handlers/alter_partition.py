"""AlterPartition, version 3: change the ISR at a leader's request. Brokers only.

- The controller decides; an error in the response is its decision, and is final.
- Accepts requests of the registered incarnation of a broker only (STALE_BROKER_EPOCH).
- Versions: 3, the first with the broker epochs of the ISR members.
"""

from headrace.requests.broker_to_controller import error_response, handle

__all__ = ["error_response", "handle"]
