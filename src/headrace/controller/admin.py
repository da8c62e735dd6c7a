"""Writes changes of topics, settings, users and producer ids, on the controller.

`topics_machine` decides about topics. The image changes after the store has accepted a write;
listeners of the image then create and delete logs.

1. After a write with an unknown outcome, its nodes are read again (B5).
2. A write that has started is completed, and reaches the image, even if its client disconnects.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from headrace.cluster.keyed_locks import KeyedLocks
from headrace.cluster.live_image import LiveImage
from headrace.cluster.quota_reader import has_client_quotas
from headrace.controller import topics_machine as machine
from headrace.controller.fenced_writer import FencedWriter, not_controller
from headrace.coordination import layout
from headrace.coordination.layout import ChangeRow
from headrace.coordination.port import Create, Op, Set, Store, StoreUnavailable
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import PartitionState, TopicState, collision_key

GROUPS_WITH_CONFIGS_MAX = 10_000
USERS_MAX = 100_000
_ATTEMPTS_MAX = 10
_ZERO_ID = UUID(int=0)
_TOO_FEW_BROKERS = (
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
)
_log = logging.getLogger(__name__)

T = TypeVar("T")
ConfigEdit = Mapping[str, str | None] | Callable[[Mapping[str, str]], Mapping[str, str]]
"""Settings to set; a value of None removes one.

Or a function that returns the new settings for the present ones. It can be called several times.
"""
TopicConfigCheck = Callable[[Mapping[str, str]], None]
BrokerConfigCheck = Callable[[Mapping[str, str], int | None], None]


class Admin:
    def __init__(
        self,
        store: Store,
        live_image: LiveImage,
        writer: FencedWriter,
        locks: KeyedLocks,
        limits: machine.TopicLimits,
        check_topic_config: TopicConfigCheck,
        check_broker_config: BrokerConfigCheck,
        *,
        entropy: Callable[[int], bytes],
        avoided: Callable[[], Collection[int]],
        wall_ms: Callable[[], int],
    ) -> None:
        """`avoided` returns registered brokers that should get no replicas of new partitions."""
        self._limits = limits
        self._avoided = avoided
        self.image = live_image.image
        self._store = store
        self._live_image = live_image
        self._writer = writer
        self._locks = locks
        self._check_topic_config = check_topic_config
        self._check_broker_config = check_broker_config
        self._entropy = entropy
        self._wall_ms = wall_ms
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._replicas_being_added = 0
        self._stopping = False

    async def stop(self) -> None:
        """Reject new requests, and wait for the writes that have started."""
        self._stopping = True
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def create_topic(
        self, new: machine.NewTopic, configs: Mapping[str, str], validate_only: bool
    ) -> TopicState:
        name = new.name
        topic_id = _ZERO_ID if validate_only else new.topic_id or self.new_id()
        async with self._locks.hold(collision_key(name)):
            for _ in range(_ATTEMPTS_MAX):
                found = self.image.topics.get(name)
                if found is not None and found.topic_id == topic_id:
                    return found  # An earlier attempt, with an unknown outcome, had succeeded.
                states = await self._decide_on_registered_brokers(
                    lambda: machine.decide_creation(
                        self.image,
                        new,
                        self._limits,
                        self._random_number(),
                        self._replica_count(),
                        self._avoided(),
                    )
                )
                self._check_topic_config(configs)
                topic = TopicState(name, topic_id, states, configs)
                if validate_only:
                    return topic
                if await self._commit_topic(name, topic, states, self._creation_operations(topic)):
                    return topic
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def _decide_on_registered_brokers(self, decide: Callable[[], T]) -> T:
        """Decide. If too few brokers are registered, read the registrations and decide again."""
        try:
            return decide()
        except ApiError as error:
            if error.code not in _TOO_FEW_BROKERS:
                raise
        try:
            await self._store.sync()
            await self._live_image.read_brokers()
        except StoreUnavailable:
            raise not_controller() from None
        return decide()

    def _creation_operations(self, topic: TopicState) -> list[Op]:
        document = layout.encode_topic(layout.topic_document(topic))
        return [
            Create(layout.topic_path(topic.name), document),
            Create(layout.topic_config_path(topic.name), layout.encode_config(topic.configs)),
            *(
                Create(*self._states(topic, first))
                for first in layout.state_node_partitions(len(topic.partitions))
            ),
        ]

    async def delete_topic(self, name: str, topic_id: UUID | None, internal: bool) -> TopicState:
        deleted: TopicState | None = None
        async with self._locks.hold(collision_key(name)):
            for _ in range(_ATTEMPTS_MAX):
                found = self.image.topics.get(name)
                if deleted is not None and (found is None or found.topic_id != deleted.topic_id):
                    return deleted  # An earlier attempt, with an unknown outcome, had succeeded.
                deleted = machine.decide_deletion(self.image, name, topic_id, internal)
                ops: list[Op] = [
                    self._writer.delete(layout.states_path(name, first))
                    for first in layout.state_node_partitions(len(deleted.partitions))
                ]
                ops.append(self._writer.delete(layout.topic_config_path(name)))
                ops.append(self._writer.delete(layout.topic_path(name)))
                if await self._commit_topic(name, None, (), ops):
                    return deleted
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignment: Sequence[Sequence[int]] | None,
        validate_only: bool,
    ) -> TopicState:
        tried: TopicState | None = None
        async with self._locks.hold(collision_key(name)):
            for _ in range(_ATTEMPTS_MAX):
                topic = machine.existing(self.image, name)
                if tried is not None and topic.partitions == tried.partitions:
                    return topic  # An earlier attempt, with an unknown outcome, had succeeded.
                added = await self._decide_on_registered_brokers(
                    lambda: machine.decide_growth(
                        self.image,
                        name,
                        count,
                        assignment,
                        self._limits,
                        self._random_number(),
                        self._replica_count(),
                        self._avoided(),
                    )
                )
                tried = replace(topic, partitions=topic.partitions + added)
                if validate_only:
                    return tried
                if await self._commit_topic(
                    name, tried, added, self._growth_operations(topic, tried)
                ):
                    return tried
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    def _growth_operations(self, before: TopicState, after: TopicState) -> list[Op]:
        document = layout.encode_topic(layout.topic_document(after))
        ops: list[Op] = [self._writer.set(layout.topic_path(after.name), document)]
        for first in layout.state_node_partitions(len(after.partitions)):
            path, data = self._states(after, first)
            if first >= len(before.partitions):
                ops.append(Create(path, data))
            elif first + layout.PARTITIONS_PER_NODE > len(before.partitions):
                ops.append(self._writer.set(path, data))
        return ops

    async def alter_topic_configs(
        self, name: str, edit: ConfigEdit, validate_only: bool
    ) -> TopicState:
        async with self._locks.hold(collision_key(name)):
            for _ in range(_ATTEMPTS_MAX):
                topic = machine.existing(self.image, name)
                configs = _edited(topic.configs, edit)
                self._check_topic_config(configs)
                after = replace(topic, configs=configs)
                if validate_only or configs == topic.configs:
                    return after
                op = self._writer.set(layout.topic_config_path(name), layout.encode_config(configs))
                if await self._commit_topic(name, after, (), [op], "config"):
                    return after
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def alter_broker_configs(
        self, node_id: int | None, edit: ConfigEdit, validate_only: bool
    ) -> Mapping[str, str]:
        path = layout.broker_config_path(node_id)
        async with self._locks.hold(path):
            for _ in range(_ATTEMPTS_MAX):
                if node_id is not None and node_id not in self.image.brokers:
                    raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Unknown broker {node_id}.")
                configs = _edited(self.image.broker_configs.get(node_id, {}), edit)
                self._check_broker_config(configs, node_id)
                if validate_only:
                    return configs
                op = self._writer.put(path, layout.encode_config(configs))
                name = layout.DEFAULT_BROKER if node_id is None else str(node_id)
                rows = [ChangeRow("broker", name)]
                if await self._writer.commit([op], rows, ErrorCode.INVALID_CONFIG):
                    self._live_image.set_broker_config(node_id, configs)
                    return configs
                await self._read_again(self._live_image.read_broker_configs)
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def alter_group_configs(
        self, group: str, edit: ConfigEdit, validate_only: bool
    ) -> Mapping[str, str]:
        path = layout.group_config_path(group)
        async with self._locks.hold(path):
            for _ in range(_ATTEMPTS_MAX):
                known = self.image.group_configs.get(group, {})
                configs = _edited(known, edit)
                if validate_only or configs == known:
                    return configs
                if not known and len(self.image.group_configs) >= GROUPS_WITH_CONFIGS_MAX:
                    raise ApiError(
                        ErrorCode.INVALID_CONFIG,
                        f"{GROUPS_WITH_CONFIGS_MAX} groups already have settings, the maximum. "
                        "Remove the settings of other groups first.",
                    )
                op = (
                    self._writer.put(path, layout.encode_config(configs))
                    if configs
                    else self._writer.delete(path)
                )
                rows = [ChangeRow("group", group)]
                if await self._writer.commit([op], rows, ErrorCode.INVALID_CONFIG):
                    self._live_image.set_group_config(group, configs)
                    return configs
                await self._read_again(self._live_image.read_group_configs)
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def alter_user(self, user: str, edit: ConfigEdit) -> Mapping[str, str]:
        path = layout.user_config_path(user)
        configs: Mapping[str, str] | None = None
        async with self._locks.hold(layout.USER_CONFIGS):
            for _ in range(_ATTEMPTS_MAX):
                known = self.image.users.get(user, {})
                if configs == known:
                    return known  # An earlier attempt, with an unknown outcome, had succeeded.
                configs = _edited(known, edit)
                if configs == known:
                    return known
                if not known and len(self.image.users) >= USERS_MAX:
                    raise ApiError(
                        ErrorCode.UNACCEPTABLE_CREDENTIAL,
                        f"{USERS_MAX} users already exist, the maximum. Delete other users first.",
                    )
                op = (
                    self._writer.put(path, layout.encode_config(configs))
                    if configs or has_client_quotas(self.image, user)
                    else self._writer.delete(path)
                )
                rows = [ChangeRow("user", user)]
                if await self._writer.commit([op], rows, ErrorCode.UNACCEPTABLE_CREDENTIAL):
                    self._live_image.set_user(user, configs)
                    return configs
                await self._read_again(lambda: self._live_image.read_users([user]))
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def allocate_producer_ids(self, first_min: int) -> tuple[int, int]:
        """A block of producer ids that were never used: the first id, and the count.

        The ids are not below the time in milliseconds. So they are new even if the store was
        restored from an older copy. With the id of a former producer, a batch could be taken for
        one that is already stored, and be lost.
        """
        async with self._locks.hold(layout.PRODUCER_IDS):
            try:
                for _ in range(_ATTEMPTS_MAX):
                    data, stat = await self._store.get(layout.PRODUCER_IDS)
                    first = max(layout.decode_producer_ids(data), first_min, self._wall_ms())
                    after = layout.encode_producer_ids(first + layout.PRODUCER_IDS_PER_BLOCK)
                    # After an unknown outcome, a block can be lost, but is not allocated twice.
                    if await self._writer.commit([Set(layout.PRODUCER_IDS, after, stat.version)]):
                        return first, layout.PRODUCER_IDS_PER_BLOCK
            except (ApiError, StoreUnavailable) as error:
                if isinstance(error, ApiError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                _log.warning("producer ids not allocated: error=%s", error)
        # Kafka also returns this error: every client retries InitProducerId after it.
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    async def _commit_topic(
        self,
        name: str,
        after: TopicState | None,
        added: Sequence[PartitionState],
        ops: Sequence[Op],
        kind: str = "topic",
    ) -> bool:
        """Write one topic and update the image.

        Returns False if a node had changed, or the outcome is unknown: decide again.
        """
        replicas_added = sum(len(state.replicas) for state in added)
        too_large = ErrorCode.INVALID_PARTITIONS if added else ErrorCode.INVALID_CONFIG
        self._replicas_being_added += replicas_added
        try:
            done = await self._writer.commit(ops, [ChangeRow(kind, name)], too_large)
        finally:
            self._replicas_being_added -= replicas_added
        if done:
            self._live_image.set_topic(name, after)
        else:
            await self._read_again(lambda: self._live_image.read_topic(name))
        return done

    async def _read_again(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            await self._store.sync()
            await read()
        except StoreUnavailable:
            # Still unknown. After a reconnect, everything is read again.
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                "The connection to the store was lost before it responded.",
            ) from None

    async def run_to_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a write to its end, so that it reaches the image, even if the caller is cancelled."""
        if self._stopping:
            work.close()
            raise ApiError(ErrorCode.NOT_CONTROLLER, "This broker is stopping.")
        if not self._writer.role.is_controller:
            work.close()
            raise not_controller()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)
        return await asyncio.shield(task)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # If the caller was cancelled, no other code reads the exception.

    def _states(self, topic: TopicState, first: int) -> tuple[str, bytes]:
        states = topic.partitions[first : first + layout.PARTITIONS_PER_NODE]
        path = layout.states_path(topic.name, first)
        return path, layout.encode_states(topic.topic_id, states, self._writer.role.epoch)

    def _replica_count(self) -> int:
        return self._live_image.replica_count + self._replicas_being_added

    def _random_number(self) -> int:
        return int.from_bytes(self._entropy(4), "big")

    def new_id(self) -> UUID:
        while True:
            id_ = machine.id_from_entropy(self._entropy(16))
            if id_ is not None:
                return id_


def _edited(current: Mapping[str, str], edit: ConfigEdit) -> dict[str, str]:
    if callable(edit):
        return dict(edit(current))
    after = {**current, **edit}
    return {name: value for name, value in after.items() if value is not None}
