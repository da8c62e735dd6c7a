"""AssignReplicasToDirs, version 0: a broker has lost logs with its disk. Between brokers alone.

Gaps: a broker has one directory; every directory that is named here means a lost one.
"""

from headrace.handlers.alter_partition import handle, refuse

__all__ = ["handle", "refuse"]
