"""The client library: a sans-IO core with a blocking and an asyncio API.

    import headrace.client

    with headrace.client.connect("localhost:9092") as client:
        client.produce("lines", "hello")

`headrace.client.aio.connect` is the same for asyncio. The core (engine.py and its machines) takes
bytes and the time and returns effects; drivers carry them out.
"""

from headrace.client.admin.group_values import GroupInfo, GroupListing, GroupMember, GroupOffset
from headrace.client.blocking import Client, Consumer, Delivery, GroupConsumer, Producer, connect
from headrace.client.core.errors import (
    AuthenticationFailed,
    ClientClosed,
    ClientError,
    CommitFailed,
    Disconnected,
    InvalidConfig,
    InvalidTopic,
    NoOffset,
    NotAuthorized,
    OffsetOutOfRange,
    ProtocolViolation,
    RecordTooLarge,
    RequestFailed,
    TimedOut,
    TopicExists,
    UnknownTopic,
    Unreachable,
    UnsupportedVersion,
)
from headrace.client.core.properties import load_properties
from headrace.client.core.values import (
    AtTime,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    QuotaInfo,
    Reassignment,
    Record,
    RecordMetadata,
    TokenInfo,
    TopicInfo,
    UserInfo,
)
from headrace.model.acls import Acl, AclFilter, PatternType, Permission, ResourceType
from headrace.model.acls import Operation as AclOperation
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition

__all__ = [
    "Acl",
    "AclFilter",
    "AclOperation",
    "AtTime",
    "AuthenticationFailed",
    "Client",
    "ClientClosed",
    "ClientError",
    "CommitFailed",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResource",
    "Consumer",
    "Delivery",
    "Disconnected",
    "ErrorCode",
    "GroupConsumer",
    "GroupInfo",
    "GroupListing",
    "GroupMember",
    "GroupOffset",
    "InvalidConfig",
    "InvalidTopic",
    "NewTopic",
    "NoOffset",
    "NotAuthorized",
    "OffsetOutOfRange",
    "PatternType",
    "Permission",
    "Producer",
    "ProtocolViolation",
    "QuotaInfo",
    "Reassignment",
    "Record",
    "RecordMetadata",
    "RecordTooLarge",
    "RequestFailed",
    "ResourceType",
    "TimedOut",
    "TokenInfo",
    "TopicExists",
    "TopicInfo",
    "TopicPartition",
    "UnknownTopic",
    "Unreachable",
    "UnsupportedVersion",
    "UserInfo",
    "connect",
    "load_properties",
]
