"""Writes partition states to the store, with few requests for many states.

Owns the queue of decisions. A decision is a function that reads and sets states. While a request is
in flight, decisions are queued; the next request contains the results of all of them.

1. `edit` returns the result of a decision after the store has accepted the states, and the image
   contains them (B5). After an unknown outcome, or if a node had changed, the nodes are read, and
   the decision is called again with the new states.
2. A write checks the versions of the nodes that it changes, and holds the locks of their topics.
3. If a topic is deleted or created again during a write, the image ignores the written states.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from headrace.cluster.keyed_locks import KeyedLocks
from headrace.cluster.live_image import LiveImage
from headrace.controller.failover_machine import with_elr
from headrace.controller.fenced_writer import FencedWriter, in_requests, not_controller
from headrace.coordination import layout
from headrace.coordination.layout import ChangeRow
from headrace.coordination.port import Op, Set, Store, StoreUnavailable
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import PartitionState, TopicState, collision_key

_ATTEMPTS_MAX = 10
T = TypeVar("T")
MinInsync = Callable[[Mapping[str, str]], int]
"""Takes the settings of a topic, and returns its min.insync.replicas."""


class States:
    """The states of partitions after the decisions so far, which are not written yet."""

    def __init__(self, image: ClusterImage, min_insync: MinInsync) -> None:
        self.image = image
        self._min_insync = min_insync
        self._before: dict[str, TopicState] = {}
        self._decided: dict[str, dict[int, PartitionState]] = {}

    def get(self, topic: str, index: int) -> PartitionState | None:
        decided = self._decided.get(topic, {}).get(index)
        return self.image.partition(topic, index) if decided is None else decided

    def put(
        self, topic: str, index: int, state: PartitionState, *, is_unclean: bool = False
    ) -> None:
        """Set the next state of a partition.

        Its ELR is derived from the change. An unclean election clears the ELR.
        """
        before = self.get(topic, index)
        assert before is not None
        if is_unclean:
            state = replace(state, elr=(), last_known_elr=())
        else:
            min_insync = self._min_insync(self.image.topics[topic].configs)
            state = with_elr(before, state, min_insync)
        self._before.setdefault(topic, self.image.topics[topic])
        self._decided.setdefault(topic, {})[index] = state

    @property
    def topics(self) -> list[str]:
        """The names of the topics with changes."""
        return sorted(self._decided)

    @property
    def is_current(self) -> bool:
        """Whether the image still has the states that the decisions have read."""
        return all(self.image.topics.get(name) is topic for name, topic in self._before.items())

    def nodes(self) -> list[tuple[str, int]]:
        """Topic and first partition of each node that must be written."""
        firsts = {
            (name, index - index % layout.PARTITIONS_PER_NODE): None
            for name in self.topics
            for index in self._decided[name]
        }
        return sorted(firsts)

    def topic_after(self, topic: str) -> TopicState:
        """The state of a topic after these decisions."""
        before = self._before[topic]
        decided = self._decided[topic]
        states = (decided.get(index, state) for index, state in enumerate(before.partitions))
        return replace(before, partitions=tuple(states))

    def changes_replicas(self, topic: str) -> bool:
        """Whether the replicas of one of its partitions change."""
        before = self._before[topic].partitions
        return any(
            (state.replicas, state.adding, state.removing)
            != (before[index].replicas, before[index].adding, before[index].removing)
            for index, state in self._decided[topic].items()
        )

    def node_states(self, topic: str, first: int) -> list[PartitionState]:
        """All partition states in one node after these decisions."""
        decided = self._decided[topic]
        partitions = self._before[topic].partitions
        last = min(first + layout.PARTITIONS_PER_NODE, len(partitions))
        return [decided.get(index, partitions[index]) for index in range(first, last)]


class _Edit:
    """A queued decision, and its result or error."""

    __slots__ = ("decide", "error", "extra", "response", "result")

    def __init__(
        self,
        decide: Callable[[States], Any],
        extra: Callable[[], Sequence[Op]],
        response: "asyncio.Future[Any]",
    ) -> None:
        self.decide = decide
        self.extra = extra
        self.response = response
        self.result: Any = None
        self.error: ApiError | None = None


class StateWriter:
    def __init__(
        self,
        store: Store,
        live_image: LiveImage,
        writer: FencedWriter,
        locks: KeyedLocks,
        min_insync: MinInsync,
    ) -> None:
        self._min_insync = min_insync
        self._store = store
        self._live_image = live_image
        self._writer = writer
        self._locks = locks
        self._pending: list[_Edit] = []
        self._task: asyncio.Task[None] | None = None

    async def edit(
        self,
        decide: Callable[[States], T],
        extra: Callable[[], Sequence[Op]] = tuple,
    ) -> T:
        """Make a decision, write the states, and return the result of the decision.

        Can call `decide` several times. The operations that `extra` returns are written in the same
        request.
        """
        loop = asyncio.get_running_loop()
        edit = _Edit(decide, extra, loop.create_future())
        self._pending.append(edit)
        if self._task is None:
            self._task = loop.create_task(self._run())
        result: T = await edit.response
        return result

    async def finish(self) -> None:
        """Wait until no decision is queued and no request is in flight."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._pending:
                edits, self._pending = self._pending, []
                await self._complete(edits)
        finally:
            self._task = None

    async def _complete(self, edits: list[_Edit]) -> None:
        try:
            for _ in range(_ATTEMPTS_MAX):
                if await self._try(edits):
                    break
            else:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
        except Exception as error:  # noqa: BLE001 - each caller gets the error
            for edit in edits:
                if not edit.response.done():
                    edit.response.set_exception(error)
            return
        for edit in edits:
            if edit.response.done():
                continue
            if edit.error is not None:
                edit.response.set_exception(edit.error)
            else:
                edit.response.set_result(edit.result)

    def _decide(self, edits: Sequence[_Edit]) -> States:
        states = States(self._live_image.image, self._min_insync)
        for edit in edits:
            try:
                edit.result, edit.error = edit.decide(states), None
            except ApiError as error:
                edit.result, edit.error = None, error
        return states

    async def _try(self, edits: Sequence[_Edit]) -> bool:
        """Decide and write once. Returns False if that must be repeated with newer states."""
        states = self._decide(edits)
        extra = [op for edit in edits if edit.error is None for op in edit.extra()]
        if not states.topics and not extra:
            return True
        async with self._locks.hold_all(map(collision_key, states.topics)):
            if not states.is_current:
                return False
            if await self._commit(states, extra):
                return True
            await self._read_again(states.topics)
        return False

    async def _commit(self, states: States, extra: Sequence[Op]) -> bool:
        nodes = {layout.states_path(*node): node for node in states.nodes()}
        reassigned = [name for name in states.topics if states.changes_replicas(name)]
        others = [
            self._states_operation(states, node)
            for node in nodes.values()
            if node[0] not in reassigned
        ]
        # Replicas and states of one topic must change in one request; all others can be split.
        requests = [self._topic_operations(states, name) for name in reassigned] + in_requests(
            others
        )
        for request in requests or [[]]:
            written = [nodes[op.path] for op in request if op.path in nodes]
            rows = [
                ChangeRow("topic", name) if name in reassigned else ChangeRow("states", name, first)
                for name, first in written
            ]
            if not await self._writer.commit([*extra, *request], rows):
                return False
            extra = ()
            self._update_image(states, written)
        return True

    def _states_operation(self, states: States, node: tuple[str, int]) -> Set:
        topic_id = states.image.topics[node[0]].topic_id
        data = layout.encode_states(topic_id, states.node_states(*node), self._writer.role.epoch)
        return self._writer.set(layout.states_path(*node), data)

    def _topic_operations(self, states: States, name: str) -> list[Set]:
        document = layout.encode_topic(layout.topic_document(states.topic_after(name)))
        ops = [self._states_operation(states, node) for node in states.nodes() if node[0] == name]
        return [self._writer.set(layout.topic_path(name), document), *ops]

    def _update_image(self, states: States, written: Sequence[tuple[str, int]]) -> None:
        for name in dict.fromkeys(name for name, _ in written):
            topic = states.image.topics.get(name)
            if topic is None or topic.topic_id != states.topic_after(name).topic_id:
                continue  # A later read found it deleted, or created again.
            partitions = list(topic.partitions)
            for first in (first for other, first in written if other == name):
                node_states = states.node_states(name, first)
                partitions[first : first + len(node_states)] = node_states
            self._live_image.set_topic(name, replace(topic, partitions=tuple(partitions)))

    async def _read_again(self, names: Sequence[str]) -> None:
        try:
            await self._store.sync()
            for name in names:
                await self._live_image.read_topic(name)
        except StoreUnavailable:
            # Still unknown. After a reconnect, everything is read again.
            raise not_controller() from None
