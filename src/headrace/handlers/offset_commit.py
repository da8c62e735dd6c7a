"""OffsetCommit, versions 2 to 10: commit offsets of a group.  # HOT

- Stores metadata and leader epoch unchanged.
- An unknown partition has its own error; the other partitions are committed.
- All commits of one loop iteration are one write.
- Requires: Read on the group and on the topic.
- Versions: 2 to 10. Up to 4, a client can set the retention time of its offsets. Since 6, it sends
  the leader epoch, and since 7 its instance id. Since 10, topic ids; an unknown id has the error
  UNKNOWN_TOPIC_ID.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, final
from uuid import UUID

from mypy_extensions import i64

from headrace.model.errors import ErrorCode
from headrace.replication.append_queue import AppendQueue
from headrace.runtime.exchange import Exchange, Peer
from headrace.security.authorizer import Operation, Resource, group_resource, topic_resource
from headrace.wire.apis import OFFSET_COMMIT
from headrace.wire.offset_commit import (
    TOPIC_IDS_SINCE,
    CommitPartition,
    CommitRequest,
    CommitTopic,
    read_offset_commit,
    write_offset_commit,
)

if TYPE_CHECKING:
    from headrace.group.service import GroupService
    from headrace.model.cluster import ClusterImage
    from headrace.security.authorizer import Authorizer

WORK: Final = 10
BYTES_PER_WORK: Final = 4

_log = logging.getLogger(__name__)
Waiting = dict[CommitRequest, Exchange]


@final
class CommitHandler:
    def __init__(
        self,
        image: "ClusterImage",
        appends: AppendQueue,
        groups: "Callable[[], GroupService]",
        authorizer: "Authorizer",
    ) -> None:
        self.authorizer = authorizer
        self.image = image
        self.appends = appends
        self.groups = groups
        self.waiting: Waiting = {}
        """The commits of this loop iteration. They are one write."""

    def handle(
        self, peer: Peer, correlation_id: i64, version: i64, data: bytes, at: i64, end: i64
    ) -> None:
        request = read_offset_commit(data, at, end, version)
        exchange = Exchange(peer, correlation_id, version)
        peer.exchanges.append(exchange)
        if not self._is_group_allowed(peer, request):
            request.set_error(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            self._respond(exchange, request)
            return
        if version >= TOPIC_IDS_SINCE:
            self._find_names(request)
        denied = self._reject_denied_topics(peer, request)
        if not self._reject_unknown_partitions(request, denied):
            self._respond(exchange, request)
            return
        # The next request on this connection must see this commit.
        peer.muted = True
        if not self.waiting:
            self.appends.before_flush(self._commit_all)
        self.waiting[request] = exchange

    def _find_names(self, request: CommitRequest) -> None:
        """Groups store offsets by topic name. An id without a name is unknown."""
        for topic in request.topics:
            topic.name = self.image.names_by_id.get(UUID(bytes=topic.topic_id), "")
            if not topic.name:
                for part in topic.partitions:
                    part.code = ErrorCode.UNKNOWN_TOPIC_ID

    def _is_group_allowed(self, peer: Peer, request: CommitRequest) -> bool:
        group = group_resource(request.group_id)
        if peer.is_internal or self.authorizer.allows(
            peer.principal, peer.host, Operation.READ, group
        ):
            return True
        self._report_denial(peer, group)
        return False

    def _reject_denied_topics(self, peer: Peer, request: CommitRequest) -> set[str]:
        """Reject topics without permission. Returns their names."""
        denied: set[str] = set()
        if peer.is_internal:
            return denied
        allows = self.authorizer.allows
        principal, host = peer.principal, peer.host
        for topic in request.topics:
            if topic.topic_id and not topic.name:
                continue
            if not allows(principal, host, Operation.READ, topic_resource(topic.name)):
                self._report_denial(peer, topic_resource(topic.name))
                denied.add(topic.name)
                for part in topic.partitions:
                    part.code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return denied

    def _report_denial(self, peer: Peer, resource: Resource) -> None:
        self.authorizer.denied(peer.principal, peer.host, OFFSET_COMMIT, Operation.READ, resource)

    def _reject_unknown_partitions(self, request: CommitRequest, denied: set[str]) -> bool:
        """Reject unknown partitions. Returns whether any partition can be committed.

        As in Kafka, the response lists rejected topics and partitions first. A topic without
        partitions is only listed if it is denied or unknown. So a response does not reveal whether
        a denied topic exists.
        """
        rejected: list[CommitTopic] = []
        known: list[CommitTopic] = []
        for topic in request.topics:
            state = self.image.topics.get(topic.name)
            count: i64 = 0 if state is None else len(state.partitions)
            bad: list[CommitPartition] = []
            good: list[CommitPartition] = []
            for part in topic.partitions:
                if part.code == 0 and not 0 <= part.partition < count:
                    part.code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                (good if part.code == 0 else bad).append(part)
            if bad:
                topic.partitions = bad + good
            if bad or state is None or topic.name in denied:
                rejected.append(topic)
            elif good:
                known.append(topic)
        request.topics = rejected + known
        return any(part.code == 0 for topic in request.topics for part in topic.partitions)

    def _commit_all(self) -> None:
        """Write all commits of one loop iteration, in the order of their arrival."""
        waiting = self.waiting
        self.waiting = {}
        try:
            completed = self.groups().commit_all(waiting, partial(self._respond_late, waiting))
        except Exception:  # noqa: BLE001 (logged; the requests get an error)
            _log.exception("offset commits failed with an internal error")
            completed = list(waiting)
            for request in completed:
                request.set_error(ErrorCode.UNKNOWN_SERVER_ERROR)
        self._respond_all(waiting, completed)

    def _respond_late(self, waiting: Waiting, completed: list[CommitRequest]) -> None:
        """Respond outside of a loop iteration, after the commits have succeeded or failed."""
        self._respond_all(waiting, completed)
        self.appends.send_responses()

    def _respond_all(self, waiting: Waiting, completed: list[CommitRequest]) -> None:
        for request in completed:
            exchange = waiting.pop(request, None)
            if exchange is not None:
                exchange.peer.muted = False
                self._respond(exchange, request)

    def _respond(self, exchange: Exchange, request: CommitRequest) -> None:
        response = write_offset_commit(exchange.correlation_id, request)
        exchange.peer.work += WORK + len(response) // BYTES_PER_WORK
        exchange.respond([response])
