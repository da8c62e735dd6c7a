"""AssignReplicasToDirs, version 0: report logs lost with a disk. Brokers only.

Gaps: a broker has one directory; every directory in the request is a lost one.
"""

from headrace.requests.broker_to_controller import handle, refuse

__all__ = ["handle", "refuse"]
