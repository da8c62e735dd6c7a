"""The controller: the one writer of what the cluster agrees on, and this broker's picture of it.

Owns the image, the broker's registration, the controller's epoch, and every write to topics,
settings and producer ids. Decisions are made in `topics_machine`; local logs are made and removed
by whoever listens to the changes.

1. Every write is a `multi` that checks the version of /controller_epoch first (B8), and compares
   the version of each node that it changes.
2. The image changes after the store has agreed, on the loop, and listeners are told at once, in
   the order of the changes.
3. A write of unknown outcome is neither done nor failed: what it was about is read again (B5).
4. A write that was begun is finished in the image even if its asker has gone.
5. A broker that registers leads under new leader epochs (B7).
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from headrace.controller import membership, reading
from headrace.controller import topics_machine as machine
from headrace.controller.changes import ImageChange
from headrace.controller.picture import Picture
from headrace.controller.writing import KeyedLocks, Writer, in_requests
from headrace.coordination import layout
from headrace.coordination.port import (
    Create,
    Delete,
    Op,
    SessionState,
    Set,
    Store,
    StoreError,
    StoreUnavailable,
)
from headrace.model.cluster import ClusterImage, Endpoint
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import PartitionState, TopicState

_ATTEMPTS_MAX = 10
_ID_OF_NOTHING = UUID(int=0)
_log = logging.getLogger(__name__)

T = TypeVar("T")
ConfigEdit = Mapping[str, str | None] | Callable[[Mapping[str, str]], Mapping[str, str]]
"""Settings to set, or to remove where None; or a function from the old settings to the new, which
may be called again on newer ones."""
TopicConfigCheck = Callable[[Mapping[str, str]], None]
BrokerConfigCheck = Callable[[Mapping[str, str], int | None], None]


def _anything_goes(*_: object) -> None:
    pass


class Controller:
    def __init__(
        self,
        store: Store,
        node_id: int,
        *,
        limits: machine.TopicLimits | None = None,
        check_topic_config: TopicConfigCheck = _anything_goes,
        check_broker_config: BrokerConfigCheck = _anything_goes,
        entropy: Callable[[int], bytes] = os.urandom,
        registration_wait_s: float = 20.0,
    ) -> None:
        self.node_id = node_id
        self.limits = limits or machine.TopicLimits()
        self.broker_epoch = -1
        self.controller_epoch = 0
        self._store = store
        self._picture = Picture(store)
        self.image: ClusterImage = self._picture.image
        self._writer = Writer(store, self._picture.versions)
        self._check_topic_config = check_topic_config
        self._check_broker_config = check_broker_config
        self._entropy = entropy
        self._registration_wait_s = registration_wait_s
        self._registration = b""
        self._former_sessions: list[int] = []
        self._locks = KeyedLocks()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._rejoins: dict[asyncio.Task[None], None] = {}
        self._replicas_coming = 0
        self._producer_ids = range(0)
        self._stopping = False

    @property
    def is_controller(self) -> bool:
        return self._writer.fence is not None

    def on_change(self, listener: Callable[[ImageChange], None]) -> None:
        """Be told of each change. What `start` finds is in the image and is not told."""
        self._picture.on_change(listener)

    async def start(
        self, endpoints: Iterable[Endpoint], *, rack: str | None = None, cluster_id: str = ""
    ) -> None:
        """Register, become the controller, load the image, take up the leaderships.

        `cluster_id` is for a store that has none yet; afterwards the image has the true one.
        Raises StoreUnavailable, LayoutError, or ApiError where the id is taken.
        """
        self._registration = layout.encode_broker(endpoints, rack)
        await membership.prepare(self._store, cluster_id or layout.id_text(self._new_id()))
        self.image.cluster_id = await reading.read_cluster_id(self._store)
        await self._join()
        self._picture.telling = True
        self._store.on_session(self._session_changed)

    async def stop(self) -> None:
        """Finish what was begun and deregister. The store is closed by whoever opened it."""
        self._stopping = True
        for rejoin in self._rejoins:
            rejoin.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        try:
            if self.is_controller:
                await self._writer.commit([Delete(layout.CONTROLLER)])
            await self._store.delete(layout.broker_path(self.node_id))
        except (ApiError, StoreError, StoreUnavailable) as error:
            # The end of the session removes the same nodes, only later.
            _log.info("This broker could not deregister: %s", error)
        self._writer.fence = None

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = machine.DEFAULT,
        replication_factor: int = machine.DEFAULT,
        assignment: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        internal: bool = False,
        topic_id: UUID | None = None,
        leader_epochs: Sequence[int] = (),
    ) -> TopicState:
        """Make a topic. With `validate_only` the answer is what it would be, with a zero id.

        For logs that are there already, `topic_id` is theirs and `leader_epochs` are above theirs.
        """
        new = machine.NewTopic(
            name, partitions, replication_factor, assignment, internal, topic_id, leader_epochs
        )
        return await self._finish(self._create_topic(new, dict(configs or {}), validate_only))

    async def delete_topic(
        self, name: str, *, topic_id: UUID | None = None, internal: bool = False
    ) -> TopicState:
        """Delete a topic, and return what it was. Its logs are the listeners' to remove."""
        return await self._finish(self._delete_topic(name, topic_id, internal))

    async def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicState:
        """Bring a topic up to `count` partitions; `assignment` is for the added ones."""
        return await self._finish(self._create_partitions(name, count, assignment, validate_only))

    async def alter_topic_configs(
        self, name: str, edit: ConfigEdit, *, validate_only: bool = False
    ) -> TopicState:
        return await self._finish(self._alter_topic_configs(name, edit, validate_only))

    async def alter_broker_configs(
        self, node_id: int | None, edit: ConfigEdit, *, validate_only: bool = False
    ) -> Mapping[str, str]:
        """Change the dynamic settings of one broker, or with None those of all."""
        return await self._finish(self._alter_broker_configs(node_id, edit, validate_only))

    async def allocate_producer_ids(self, first_min: int = 0) -> tuple[int, int]:
        """A block of producer ids that nobody was given before: the first, and how many."""
        return await self._finish(self._allocate_producer_ids(first_min))

    async def next_producer_id(self) -> int:
        """One producer id, out of this broker's block."""
        if not self._producer_ids:
            async with self._locks.hold("next producer id"):
                if not self._producer_ids:
                    first, count = await self.allocate_producer_ids()
                    self._producer_ids = range(first, first + count)
        producer_id = self._producer_ids[0]
        self._producer_ids = self._producer_ids[1:]
        return producer_id

    async def _create_topic(
        self, new: machine.NewTopic, configs: Mapping[str, str], validate_only: bool
    ) -> TopicState:
        name = new.name
        topic_id = _ID_OF_NOTHING if validate_only else new.topic_id or self._new_id()
        async with self._locks.hold(machine.collision_key(name)):
            for _ in range(_ATTEMPTS_MAX):
                found = self.image.topics.get(name)
                if found is not None and found.topic_id == topic_id:
                    return found  # An attempt of unknown outcome had got through.
                states = machine.decide_creation(
                    self.image, new, self.limits, self._number(), self._replica_count()
                )
                self._check_topic_config(configs)
                topic = TopicState(name, topic_id, states, configs)
                if validate_only:
                    return topic
                if await self._commit_topic(name, topic, states, self._creation(topic)):
                    return topic
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    def _creation(self, topic: TopicState) -> list[Op]:
        assignment = tuple(state.replicas for state in topic.partitions)
        document = layout.TopicDocument(topic.topic_id, assignment)
        return [
            Create(layout.topic_path(topic.name), layout.encode_topic(document)),
            Create(layout.topic_config_path(topic.name), layout.encode_config(topic.configs)),
            *(
                Create(*self._states(topic, first))
                for first in layout.states_firsts(len(topic.partitions))
            ),
        ]

    async def _delete_topic(self, name: str, topic_id: UUID | None, internal: bool) -> TopicState:
        deleted: TopicState | None = None
        async with self._locks.hold(machine.collision_key(name)):
            for _ in range(_ATTEMPTS_MAX):
                found = self.image.topics.get(name)
                if deleted is not None and (found is None or found.topic_id != deleted.topic_id):
                    return deleted  # An attempt of unknown outcome had got through.
                deleted = machine.decide_deletion(self.image, name, topic_id, internal)
                ops: list[Op] = [
                    self._writer.delete(layout.states_path(name, first))
                    for first in layout.states_firsts(len(deleted.partitions))
                ]
                ops.append(self._writer.delete(layout.topic_config_path(name)))
                ops.append(self._writer.delete(layout.topic_path(name)))
                if await self._commit_topic(name, None, (), ops):
                    return deleted
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def _create_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[Sequence[int]] | None,
        validate_only: bool,
    ) -> TopicState:
        tried: TopicState | None = None
        async with self._locks.hold(machine.collision_key(name)):
            for _ in range(_ATTEMPTS_MAX):
                topic = machine.existing(self.image, name)
                if tried is not None and topic.partitions == tried.partitions:
                    return topic  # An attempt of unknown outcome had got through.
                added = machine.decide_growth(
                    self.image,
                    name,
                    count,
                    assignment,
                    self.limits,
                    self._number(),
                    self._replica_count(),
                )
                tried = replace(topic, partitions=topic.partitions + added)
                if validate_only:
                    return tried
                if await self._commit_topic(name, tried, added, self._growth(topic, tried)):
                    return tried
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    def _growth(self, before: TopicState, after: TopicState) -> list[Op]:
        assignment = tuple(state.replicas for state in after.partitions)
        document = layout.encode_topic(layout.TopicDocument(after.topic_id, assignment))
        ops: list[Op] = [self._writer.set(layout.topic_path(after.name), document)]
        for first in layout.states_firsts(len(after.partitions)):
            path, data = self._states(after, first)
            if first >= len(before.partitions):
                ops.append(Create(path, data))
            elif first + layout.PARTITIONS_PER_NODE > len(before.partitions):
                ops.append(self._writer.set(path, data))
        return ops

    async def _alter_topic_configs(
        self, name: str, edit: ConfigEdit, validate_only: bool
    ) -> TopicState:
        async with self._locks.hold(machine.collision_key(name)):
            for _ in range(_ATTEMPTS_MAX):
                topic = machine.existing(self.image, name)
                configs = _edited(topic.configs, edit)
                self._check_topic_config(configs)
                after = replace(topic, configs=configs)
                if validate_only or configs == topic.configs:
                    return after
                op = self._writer.set(layout.topic_config_path(name), layout.encode_config(configs))
                if await self._commit_topic(name, after, (), [op]):
                    return after
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def _alter_broker_configs(
        self, node_id: int | None, edit: ConfigEdit, validate_only: bool
    ) -> Mapping[str, str]:
        path = layout.broker_config_path(node_id)
        async with self._locks.hold(path):
            for _ in range(_ATTEMPTS_MAX):
                if node_id is not None and node_id not in self.image.brokers:
                    raise ApiError(
                        ErrorCode.BROKER_ID_NOT_REGISTERED, f"There is no broker {node_id}."
                    )
                configs = _edited(self.image.broker_configs.get(node_id, {}), edit)
                self._check_broker_config(configs, node_id)
                if validate_only:
                    return configs
                op = self._writer.put(path, layout.encode_config(configs))
                if await self._writer.commit([op], ErrorCode.INVALID_CONFIG):
                    self._picture.show_broker_config(node_id, configs)
                    return configs
                await self._look_again(self._picture.read_broker_configs)
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def _allocate_producer_ids(self, first_min: int) -> tuple[int, int]:
        async with self._locks.hold(layout.PRODUCER_IDS):
            try:
                for _ in range(_ATTEMPTS_MAX):
                    data, stat = await self._store.get(layout.PRODUCER_IDS)
                    first = max(layout.decode_producer_ids(data), first_min)
                    after = layout.encode_producer_ids(first + layout.PRODUCER_IDS_PER_BLOCK)
                    # After an unknown outcome a block may be skipped; none is given twice.
                    if await self._writer.commit([Set(layout.PRODUCER_IDS, after, stat.version)]):
                        return first, layout.PRODUCER_IDS_PER_BLOCK
            except (ApiError, StoreUnavailable) as error:
                _log.warning("No producer ids could be allocated: %s", error)
        # What Kafka answers, too: every client tries InitProducerId again after it.
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    async def _commit_topic(
        self,
        name: str,
        after: TopicState | None,
        added: Sequence[PartitionState],
        ops: Sequence[Op],
    ) -> bool:
        """Write one topic and show it; or look at it again, and False: decide once more."""
        coming = sum(len(state.replicas) for state in added)
        too_large = ErrorCode.INVALID_PARTITIONS if added else ErrorCode.INVALID_CONFIG
        self._replicas_coming += coming
        try:
            done = await self._writer.commit(ops, too_large)
        finally:
            self._replicas_coming -= coming
        if done:
            self._picture.show_topic(name, after)
        else:
            await self._look_again(lambda: self._picture.read_topic(name))
        return done

    async def _look_again(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            await self._store.sync()
            await read()
        except StoreUnavailable:
            # Still unknown. When the connection is back everything is read again.
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT, "The store broke off before it answered."
            ) from None

    async def _join(self) -> None:
        """Take this broker's place in a session that is new to it."""
        self.broker_epoch = await membership.register(
            self._store,
            self.node_id,
            self._registration,
            self._former_sessions,
            self._registration_wait_s,
        )
        self._former_sessions.append(self._store.session_id)
        election = await membership.elect(self._store, self.node_id)
        self.image.controller_id = election.controller_id
        self.controller_epoch = election.controller_epoch
        self._writer.fence = election.fence
        await self._load()
        if self.is_controller:
            await self._take_leaderships()

    async def _load(self) -> None:
        await self._picture.read_brokers()
        await self._picture.read_broker_configs()
        for name in await self._picture.names():
            async with self._locks.hold(machine.collision_key(name)):
                await self._picture.read_topic(name)

    async def _take_leaderships(self) -> None:
        """Raise the leader epoch of all that this broker leads now, in few requests (B7)."""
        for _ in range(_ATTEMPTS_MAX):
            led = [topic for topic in map(self._led_anew, self.image.topics.values()) if topic]
            if not led:
                return
            ops = [
                self._writer.set(*self._states(topic, first))
                for topic in led
                for first in layout.states_firsts(len(topic.partitions))
            ]
            done = [await self._writer.commit(request) for request in in_requests(ops)]
            if all(done):
                for topic in led:
                    self._picture.show_topic(topic.name, topic)
                return
            await self._load()
        raise StoreUnavailable("the leaderships could not be written")

    def _led_anew(self, topic: TopicState) -> TopicState | None:
        states = tuple(
            machine.take_leadership(state, self.node_id, self.broker_epoch, self.image.brokers)
            or state
            for state in topic.partitions
        )
        return None if states == topic.partitions else replace(topic, partitions=states)

    def _session_changed(self, state: SessionState) -> None:
        if self._stopping or state is SessionState.SUSPENDED:
            return
        if state is SessionState.LOST:
            self._writer.fence = None
            return
        task = asyncio.get_running_loop().create_task(self._rejoin())
        self._rejoins[task] = None
        task.add_done_callback(self._rejoins.pop)

    async def _rejoin(self) -> None:
        """Watches and unknown outcomes were lost with the connection: look at everything again."""
        try:
            async with self._locks.hold("/"):
                if self._store.session_id == self._former_sessions[-1]:
                    await self._load()
                else:
                    await self._join()
        except (StoreUnavailable, ApiError, layout.LayoutError) as error:
            _log.error("This broker could not rejoin the cluster: %s", error)

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Let a write that was begun reach the image, also when its asker is cancelled."""
        if self._stopping:
            work.close()
            raise ApiError(ErrorCode.NOT_CONTROLLER, "This broker is stopping.")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # Its asker may have gone: then nobody else would look.

    def _states(self, topic: TopicState, first: int) -> tuple[str, bytes]:
        states = topic.partitions[first : first + layout.PARTITIONS_PER_NODE]
        path = layout.states_path(topic.name, first)
        return path, layout.encode_states(states, self.controller_epoch)

    def _replica_count(self) -> int:
        return self._picture.replica_count + self._replicas_coming

    def _number(self) -> int:
        return int.from_bytes(self._entropy(4), "big")

    def _new_id(self) -> UUID:
        while True:
            id_ = machine.id_from_entropy(self._entropy(16))
            if id_ is not None:
                return id_


def _edited(current: Mapping[str, str], edit: ConfigEdit) -> dict[str, str]:
    if callable(edit):
        return dict(edit(current))
    after = {**current, **edit}
    return {name: value for name, value in after.items() if value is not None}
