"""Permissions for topics on the hot path: one cached look-up per connection and topic.  # HOT

Produce and Fetch check each partition. The permissions for a topic are cached on the connection,
until the rules of the authorizer change.

1. A topic that does not exist is checked by its name, so that responses do not show which
   topics exist.
2. An unknown topic id is not denied: the handler returns UNKNOWN_TOPIC_ID.
"""

from typing import TYPE_CHECKING, Final, final
from uuid import UUID

from mypy_extensions import i64

from headrace.runtime.exchange import Peer
from headrace.security.authorizer import Operation, topic_resource
from headrace.wire.apis import FETCH, PRODUCE

if TYPE_CHECKING:
    from headrace.model.cluster import ClusterImage
    from headrace.security.authorizer import Authorizer

READ: Final = 1
WRITE: Final = 2
TOPICS_MAX: Final = 1000
REPORTED_SHIFT: Final = 2
"""The bits READ and WRITE, shifted by this, mean that a denial was reported."""


@final
class TopicPermissions:
    def __init__(self, authorizer: "Authorizer", image: "ClusterImage") -> None:
        self.authorizer = authorizer
        self.image = image

    def allows(self, peer: Peer, right: i64, key: bytes, by_id: bool) -> bool:
        """Whether a connection is allowed READ or WRITE on a topic, given by name or id."""
        if peer.is_internal:
            return True
        version: i64 = self.authorizer.version
        if peer.rights_version != version:
            peer.rights_version = version
            peer.rights_by_name = {}
            peer.rights_by_id = {}
        known = peer.rights_by_id if by_id else peer.rights_by_name
        rights = known.get(key)
        if rights is None:
            rights = self._read_rights(peer, key, by_id, known)
        if rights & right != 0:
            return True
        self._report(peer, right, key, by_id, known, rights)
        return False

    def _report(
        self, peer: Peer, right: i64, key: bytes, by_id: bool, known: dict[bytes, int], rights: int
    ) -> None:
        """Report a denial once per connection, topic and version of the rules."""
        reported = rights | int(right << REPORTED_SHIFT)
        if reported == rights:
            return
        known[key] = reported
        name = self.image.names_by_id.get(UUID(bytes=key)) if by_id else None
        resource = topic_resource(key.decode("utf-8", "replace") if name is None else name)
        is_read = right == READ
        operation = Operation.READ if is_read else Operation.WRITE
        api_key = FETCH if is_read else PRODUCE
        self.authorizer.denied(peer.principal, peer.host, api_key, operation, resource)

    def _read_rights(self, peer: Peer, key: bytes, by_id: bool, known: dict[bytes, int]) -> int:
        if by_id:
            name = self.image.names_by_id.get(UUID(bytes=key))
            if name is None:
                return READ | WRITE
        else:
            name = key.decode("utf-8", "replace")
        resource = topic_resource(name)
        rights = 0
        if self.authorizer.allows(peer.principal, peer.host, Operation.READ, resource):
            rights |= READ
        if self.authorizer.allows(peer.principal, peer.host, Operation.WRITE, resource):
            rights |= WRITE
        if len(known) >= TOPICS_MAX:
            known.clear()
        known[key] = rights
        return rights
