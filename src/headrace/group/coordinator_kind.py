"""Describes the group coordinator to the coordinator runtime: topic, codec and shards."""

from typing import TypeAlias

from headrace.coordinator.runtime import CoordinatorKind, CoordinatorRuntime
from headrace.coordinator.shard_registry import CoordinatorTopic
from headrace.coordinator.shard_runtime import ShardRuntime
from headrace.group.messages import Reply, failed_reply
from headrace.group.records import STRING_BYTES_MAX, GroupCodec, GroupRecord
from headrace.group.settings import GroupSettings
from headrace.group.shard_machine import Shard
from headrace.group.topics import Topics
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import OFFSETS_TOPIC

GroupShardRuntime: TypeAlias = ShardRuntime[Shard, GroupRecord]
GroupRuntime: TypeAlias = CoordinatorRuntime[Shard, GroupRecord, Reply]


def group_coordinator(
    settings: GroupSettings, topics: Topics
) -> CoordinatorKind[Shard, GroupRecord, Reply]:
    return CoordinatorKind(
        topic=CoordinatorTopic(
            OFFSETS_TOPIC,
            settings.topic_partitions,
            settings.topic_replicas,
            settings.topic_configs,
        ),
        codec=GroupCodec(),
        new_shard=lambda index: Shard(index, settings.classic, settings.consumer, topics),
        check_key=check_group_id,
        failed_reply=failed_reply,
        compression=settings.codec,
        commit_seconds=settings.commit_timeout_ms / 1000,
    )


def check_group_id(group_id: str) -> None:
    if len(group_id) * 4 > STRING_BYTES_MAX and len(group_id.encode()) > STRING_BYTES_MAX:
        raise ApiError(
            ErrorCode.INVALID_GROUP_ID, f"group_id must not exceed {STRING_BYTES_MAX} bytes."
        )
