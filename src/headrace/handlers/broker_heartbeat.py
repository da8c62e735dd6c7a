"""BrokerHeartbeat, versions 0 to 2: request permission to shut down. Brokers only.

- A stopping broker repeats it until other brokers are leaders of its partitions.
- The store detects failures, so running brokers do not send it.
- Versions: 0 to 2.

Gaps: want_fence and the directories are ignored.
"""

from headrace.requests.broker_to_controller import error_response, handle

__all__ = ["error_response", "handle"]
