"""Adopts partition directories of Apache Kafka: `--adopt`.

Adoption reads the names and numbers of partitions from the directories, topic ids from
`partition.metadata`, and settings from Kafka's metadata log, if it exists. It creates the topics in
the store. Then the broker opens the logs, which verifies every batch, and rebuilds indexes,
snapshots and epochs.

1. Everything is checked before the first topic is created in the store. If a topic cannot be
   adopted, none is. If the creation is interrupted, the next start with `--adopt` continues.
2. The leader epoch of a partition is higher than all epochs in its log. New producer ids are higher
   than all producer ids in the logs.
3. If the settings of a topic are unknown, retention deletes none of its records until the settings
   are changed.
4. `__consumer_offsets` is adopted with the committed offsets. `__cluster_metadata` is only read.
   Kafka's other internal topics are ignored.
5. An open transaction is committed or aborted, as Kafka would have done.
6. Users and ACLs of the metadata log are adopted before the first topic is created. A later start
   with `--adopt` that finds no new topic does not restore deleted users and ACLs.
7. Quotas of the metadata log are adopted, unless their entity already has quotas.
"""

import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple
from uuid import UUID

from headrace.controller.acl_admin import CHANGES_MAX
from headrace.controller.service import Controller
from headrace.env.files import Files
from headrace.log.directory.directory_lock import DirectoryError
from headrace.log.directory.log_directory import LogDirectory
from headrace.log.recovery.leftovers import offset_of
from headrace.log.scan import BatchWalk
from headrace.log.upkeep.checkpoints import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    decode_epochs,
    decode_partition_metadata,
    encode_partition_metadata,
)
from headrace.model.errors import ApiError
from headrace.model.quotas import check_entity, check_limit
from headrace.model.tokens import Token
from headrace.model.topics import INTERNAL_TOPICS, TopicPartition
from headrace.node.kafka_metadata import METADATA_TOPIC, KafkaMetadata, read_metadata
from headrace.node.open_transactions import STATE_TOPIC, decided_to_commit, end_transactions
from headrace.replication.append_queue import AppendQueue
from headrace.replication.partition_table import PartitionTable
from headrace.security.user_names import name_error

_logger = logging.getLogger(__name__)

IGNORED_TOPICS = frozenset({METADATA_TOPIC, STATE_TOPIC, "__share_group_state"})
_KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
_MAGIC_OFFSET = 16
_NAMED_MAX = 10


class TopicToAdopt(NamedTuple):
    name: str
    topic_id: UUID | None
    """None if no partition contains it. Then the topic gets a new id."""
    leader_epochs: list[int]
    """The last leader epoch in each partition's log; -1 if the log is empty."""
    configs: dict[str, str]


class Adoption:
    def __init__(self, logs: LogDirectory, existing_topics: Collection[str]) -> None:
        self._logs = logs
        self._files: Files = logs.files
        self.metadata: KafkaMetadata | None = read_metadata(logs.files, logs.path)
        self._existing_topics = existing_topics
        self.topics: list[TopicToAdopt] = []

    def find_topics(self, check_config: Callable[[Mapping[str, str]], None]) -> None:
        """Find the topics to adopt. Raises DirectoryError if one of them cannot be adopted."""
        if self.metadata is not None and self.metadata.unknown_acls:
            raise DirectoryError(
                f"{self._logs.path} has {len(self.metadata.unknown_acls)} ACLs that this version "
                "does not know. Delete them with kafka-acls.sh before the directory is adopted."
            )
        partitions: dict[str, list[int]] = {}
        for topic, index in self._logs.unopened:
            if topic not in IGNORED_TOPICS and topic not in self._existing_topics:
                partitions.setdefault(topic, []).append(index)
        missing = [
            str(TopicPartition(topic, index))
            for topic, indexes in sorted(partitions.items())
            for index in sorted(set(range(max(indexes))).difference(indexes))
        ]
        if missing:
            raise DirectoryError(
                f"{self._logs.path} lacks partitions with lower numbers: {_join_names(missing)}. "
                "Copy them from the brokers that had them, or move these topics out of the "
                "directory."
            )
        for topic, indexes in sorted(partitions.items()):
            self.topics.append(self._topic_to_adopt(topic, len(indexes), check_config))

    def _topic_to_adopt(
        self, topic: str, count: int, check_config: Callable[[Mapping[str, str]], None]
    ) -> TopicToAdopt:
        names = [TopicPartition(topic, index) for index in range(count)]
        for partition in names:
            self._check_format(partition)
        ids = {id_ for id_ in map(self._topic_id, names) if id_ is not None}
        if len(ids) > 1:
            raise DirectoryError(
                f"The partitions of {topic} in {self._logs.path} belong to {len(ids)} topics of "
                "that name. Move those of the older topics out of the directory."
            )
        topic_id = ids.pop() if ids else None
        epochs = [self._last_epoch(partition) for partition in names]
        return TopicToAdopt(topic, topic_id, epochs, self._configs(topic, topic_id, check_config))

    def _path(self, partition: TopicPartition) -> str:
        return f"{self._logs.path}/{partition}"

    def _log_paths(self, partition: TopicPartition) -> list[str]:
        path = self._path(partition)
        return [
            f"{path}/{info.name}"
            for info in self._files.list_directory(path)
            if info.name.endswith(".log") and offset_of(info.name) >= 0 and info.size > 0
        ]

    def _check_format(self, partition: TopicPartition) -> None:
        """Reject old message formats: opening the log would truncate their batches."""
        for path in self._log_paths(partition):
            fd = self._files.open(path)
            try:
                head = self._files.pread(fd, _MAGIC_OFFSET + 1, 0)
            finally:
                self._files.close(fd)
            if len(head) > _MAGIC_OFFSET and head[_MAGIC_OFFSET] < 2:
                raise DirectoryError(
                    f"{path} has message format {head[_MAGIC_OFFSET]}, from before Kafka 0.11, "
                    "which Headrace cannot read. Copy the topic with a consumer and a producer."
                )

    def _topic_id(self, partition: TopicPartition) -> UUID | None:
        try:
            data = self._files.read_file(f"{self._path(partition)}/{PARTITION_METADATA}")
        except FileNotFoundError:
            return None
        return decode_partition_metadata(data)

    def _last_epoch(self, partition: TopicPartition) -> int:
        """The last leader epoch in Kafka's checkpoint, or a higher one in the last segment."""
        latest = -1
        try:
            data = self._files.read_file(f"{self._path(partition)}/{LEADER_EPOCHS}")
            latest = max((epoch for epoch, _ in decode_epochs(data)), default=-1)
        except (FileNotFoundError, ValueError):
            pass
        for path in self._log_paths(partition)[-1:]:
            fd = self._files.open(path)
            try:
                walk = BatchWalk(self._files, fd, 0, self._files.size(fd), False)
                while (batch := walk.next()) is not None:
                    latest = max(latest, int(batch.leader_epoch))
            finally:
                self._files.close(fd)
        return latest

    def _configs(
        self, topic: str, topic_id: UUID | None, check_config: Callable[[Mapping[str, str]], None]
    ) -> dict[str, str]:
        metadata = self.metadata
        if metadata is None or topic not in metadata.topic_ids:
            _logger.warning(
                "topic settings unknown, nothing is deleted until they are set: topic=%s", topic
            )
            was_compacted = any(each.topic == topic for each in self._logs.compacted_partitions())
            return {"cleanup.policy": "compact"} if was_compacted else dict(_KEEP_ALL)
        if topic_id is not None and metadata.topic_ids[topic] != topic_id:
            raise DirectoryError(
                f"{self._logs.path} has directories of a topic {topic} that was deleted and "
                "recreated elsewhere. Move them out of the directory."
            )
        configs: dict[str, str] = {}
        for name, value in metadata.configs.get(topic, {}).items():
            try:
                check_config({name: value})
            except ApiError as error:
                _logger.warning("setting not adopted: topic=%s reason=%s", topic, error.message)
            else:
                configs[name] = value
        return configs

    async def create_topics(self, controller: Controller) -> None:
        """Create the topics. Their logs are opened afterwards."""
        if self.topics and self.metadata is not None:
            await self._adopt_users(controller, self.metadata)
        for topic in self.topics:
            topic_id = topic.topic_id or uuid.uuid4()
            for index in range(len(topic.leader_epochs)):
                partition = TopicPartition(topic.name, index)
                if self._topic_id(partition) is None:
                    # The directory must contain its topic id before the store contains the topic.
                    self._files.replace_file(
                        f"{self._path(partition)}/{PARTITION_METADATA}",
                        encode_partition_metadata(topic_id),
                    )
            await controller.create_topic(
                topic.name,
                partitions=len(topic.leader_epochs),
                replication_factor=1,
                configs=topic.configs,
                internal=topic.name in INTERNAL_TOPICS,
                topic_id=topic_id,
                leader_epochs=[epoch + 1 for epoch in topic.leader_epochs],
            )
            count = len(topic.leader_epochs)
            _logger.info(
                "topic adopted: topic=%s partitions=%d settings=%s",
                topic.name,
                count,
                topic.configs,
            )

    async def set_quotas(self, controller: Controller) -> None:
        """Store Kafka's quotas of entities that have none in the store."""
        found = self.metadata.quotas if self.metadata is not None else {}
        for entity, limits in found.items():
            try:
                checked = check_entity(entity)
                adopted = {kind: check_limit(checked, kind, each) for kind, each in limits.items()}
            except ApiError as error:
                _logger.warning("quota not adopted: entity=%s reason=%s", entity, error.message)
                continue
            await controller.alter_quotas(checked, partial(_unless_set, adopted))
        if found:
            _logger.info("quotas adopted: entities=%d", len(found))

    async def _adopt_users(self, controller: Controller, metadata: KafkaMetadata) -> None:
        for user, credentials in metadata.credentials.items():
            error = name_error(user)
            if error:
                _logger.warning("adopted user cannot log in: name=%r reason=%s", user, error)
            await controller.alter_user(user, partial(_with_credentials, credentials))
        known = controller.image.tokens
        tokens = [each for each in metadata.tokens.values() if each.token_id not in known]
        for token in tokens:
            await controller.create_token(partial(_keep_id, token))
        if tokens:
            _logger.info(
                "delegation tokens adopted, they need Kafka's delegation.token.secret.key: "
                "tokens=%d",
                len(tokens),
            )
        acls = list(metadata.acls.values())
        for first in range(0, len(acls), CHANGES_MAX):
            await controller.create_acls(acls[first : first + CHANGES_MAX])
        if acls or metadata.credentials:
            _logger.info(
                "users and ACLs adopted: users=%d acls=%d", len(metadata.credentials), len(acls)
            )

    async def reserve_producer_ids(self, controller: Controller) -> None:
        """Raise the next producer id above all ids in the logs, which must be open."""
        next_id = self.metadata.next_producer_id if self.metadata is not None else 0
        for log in self._logs.logs():
            next_id = max(next_id, max(log.producers.entries, default=-1) + 1)
        if next_id > 0:
            await controller.allocate_producer_ids(next_id)

    def end_transactions(self, table: PartitionTable, appends: AppendQueue) -> None:
        """End open transactions, after this broker has become leader of the partitions."""
        logs = [log for log in self._logs.logs() if log.producers.open_transactions]
        if not logs:
            return
        states = [self._path(each) for each in self._logs.unopened if each.topic == STATE_TOPIC]
        committed = decided_to_commit(self._files, sorted(states))
        now_ms = self._logs.clock.wall_ms()
        for log in logs:
            partition = table.get(*log.partition)
            assert partition is not None
            end_transactions(log, committed, now_ms, partial(appends.append, partition))


def _unless_set(adopted: Mapping[str, float], known: Mapping[str, float]) -> Mapping[str, float]:
    return known or adopted


def _keep_id(token: Token, _new_id: str) -> Token:
    return token


def _with_credentials(adopted: Mapping[str, str], current: Mapping[str, str]) -> Mapping[str, str]:
    """The credentials of a user after adoption. Existing ones are not replaced."""
    return {**adopted, **current}


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more
