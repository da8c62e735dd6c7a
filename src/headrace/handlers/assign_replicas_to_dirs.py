"""AssignReplicasToDirs, version 0: report logs lost with a disk. Brokers only.

- The controller elects other leaders for the reported partitions before it responds.
- Accepts requests of the registered incarnation of a broker only (STALE_BROKER_EPOCH).
- Versions: 0.

Gaps: a broker has one directory; every directory in the request counts as lost.
"""

from headrace.requests.broker_to_controller import error_response, handle

__all__ = ["error_response", "handle"]
