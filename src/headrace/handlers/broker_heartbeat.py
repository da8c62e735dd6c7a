"""BrokerHeartbeat, versions 0 to 2: a broker asks whether it may shut down. Between brokers alone.

Life is told by the store, so nobody sends it for that; a broker that is to stop sends it until
what it led is led by others. Gaps: want_fence and the directories are not looked at.
"""

from headrace.handlers.alter_partition import handle, refuse

__all__ = ["handle", "refuse"]
