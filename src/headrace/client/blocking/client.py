# Generated from client/aio by tools/blocking_client.py: edit that, not this.
"""The client for programs without an event loop.

    with headrace.client.connect("localhost:9092") as client:
        client.create_topic("lines", partitions=3)
        client.produce("lines", "hello", key="greeting")
        for record in client.consume("lines", until="end"):
            print(record.partition, record.offset, record.value)

A client has one connection per broker that it needs, and another per consumer. It has no thread:
use it from one thread at a time, or create one client per thread. Errors are those of
`headrace.client.core.errors`.
"""

import os
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from headrace.client.admin import acls, groups, quotas, reassignment, tokens, users
from headrace.client.admin import topics as admin
from headrace.client.admin.group_values import GroupInfo, GroupListing, GroupOffset
from headrace.client.blocking.delivery import Delivery
from headrace.client.blocking.driver import Driver, DriverFactory, OnPartitions
from headrace.client.blocking.groups import GroupConsumer
from headrace.client.blocking.streams import Consumer, Producer
from headrace.client.core import lookups
from headrace.client.core.arguments import Data, HeadersArgument, client_options, plan_reading
from headrace.client.core.engine import Engine
from headrace.client.core.errors import ClientClosed, ClientError, RequestFailed
from headrace.client.core.operation import Operation, Send
from headrace.client.core.options import (
    ClientSettings,
    ConsumerOptions,
    ConsumerSettings,
    GroupSettings,
    Isolation,
    ProducerSettings,
    producer_options,
)
from headrace.client.core.values import (
    ActiveProducer,
    ClusterInfo,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    ListedOffset,
    LogDir,
    LogEnd,
    NewTopic,
    QuotaInfo,
    Reassignment,
    Record,
    RecordMetadata,
    ReplicaInfo,
    Start,
    TokenInfo,
    TopicInfo,
    Until,
    UserInfo,
)
from headrace.model.acls import ALL_ACLS, Acl, AclFilter
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.security.scram import SALT_BYTES

__all__ = ["Client", "Consumer", "Delivery", "GroupConsumer", "Producer", "connect"]

T = TypeVar("T")


def connect(
    bootstrap: str | Sequence[str] = "localhost:9092", **settings: Unpack[ClientSettings]
) -> "Client":
    """A client for `with`, which connects to a broker or raises."""
    return Client(bootstrap, **settings)


class Client(DriverFactory):
    """A client of a cluster. Open it with `with`, or `open` and `close`."""

    def __init__(
        self, bootstrap: str | Sequence[str] = "localhost:9092", **settings: Unpack[ClientSettings]
    ) -> None:
        self._options = client_options(bootstrap, settings)
        self._driver: Driver | None = None
        self._producer: Producer | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Connect to a broker; raises Unreachable if no address responds."""
        self._driver = self._new_driver(self._options)
        try:
            self._driver.run(lookups.connect(self._driver.engine))
        except BaseException:
            self._driver.close()
            raise

    def close(self) -> None:
        """Close all connections; records of producers that were not flushed are lost."""
        if self._driver is not None:
            self._driver.close()

    @property
    def _open_driver(self) -> Driver:
        if self._driver is None or self._driver.engine.closed:
            raise ClientClosed("the client is not open: use it in 'with'")
        return self._driver

    @property
    def _engine(self) -> Engine:
        return self._open_driver.engine

    def _run(self, operation: Operation[T]) -> T:
        return self._open_driver.run(operation)

    # Records.

    def produce(
        self,
        topic: str,
        value: Data,
        *,
        key: Data = None,
        partition: int | None = None,
        headers: HeadersArgument = (),
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Write one record, and wait for its acknowledgement. For many records, use a producer."""
        if self._producer is None:
            self._producer = self.producer(
                linger_ms=0, delivery_timeout_ms=self._options.operation_timeout_ms
            )
        return self._producer.produce(
            topic,
            value,
            key=key,
            partition=partition,
            headers=headers,
            timestamp_ms=timestamp_ms,
        )

    def producer(self, **settings: Unpack[ProducerSettings]) -> Producer:
        """A producer for many records; leaving its `with` flushes it."""
        return Producer(self._open_driver, producer_options(settings))

    def consumer(self, **settings: Unpack[ConsumerSettings]) -> Consumer:
        """A consumer without a group. `assign` sets its partitions."""
        return Consumer(self._open_driver, ConsumerOptions(**settings))

    def group_consumer(
        self,
        group: str,
        topics: str | Sequence[str] = (),
        *,
        pattern: str | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        **settings: Unpack[GroupSettings],
    ) -> GroupConsumer:
        """A member of a group, which shares the partitions of these topics with other members.

        Leaving its `with` commits and leaves the group. `poll` calls the functions.
        """
        return GroupConsumer(
            self._open_driver, group, topics, pattern, on_assigned, on_revoked, on_lost, settings
        )

    def consume(
        self,
        topic: str,
        *,
        start: Start = "earliest",
        until: Until = None,
        partitions: Sequence[int] | None = None,
        max_records: int | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> Generator[Record, None, None]:
        """Read a topic, each partition in order, until `until` or forever."""
        lists = self.consume_lists(
            topic,
            start=start,
            until=until,
            partitions=partitions,
            max_records=max_records,
            **settings,
        )
        with closing(lists):
            for records in lists:
                yield from records

    def consume_lists(
        self,
        topic: str,
        *,
        start: Start = "earliest",
        until: Until = None,
        partitions: Sequence[int] | None = None,
        max_records: int | None = None,
        idle_ms: float | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> Generator[list[Record], None, None]:
        """Yield lists of records. Arguments as in `consume`; an empty list after `idle_ms`."""
        with self.consumer(**settings) as consumer:
            committed = settings.get("isolation") == "read_committed"
            starts, limits = self._run(
                plan_reading(
                    self._engine,
                    topic,
                    partitions,
                    start,
                    until,
                    read_committed=committed,
                    wall_ms=int(time.time() * 1000),
                )
            )
            consumer.assign(dict(starts))
            yield from consumer.until(limits, max_records, idle_ms)

    def list_offsets(
        self,
        at: Mapping[TopicPartition, Start],
        *,
        isolation: Isolation = "read_uncommitted",
    ) -> dict[TopicPartition, ListedOffset]:
        """The offsets of any kind of start; -1 if no record is at or after a time."""
        return self._run(
            lookups.list_offsets(
                self._engine,
                lookups.start_timestamps(at),
                read_committed=isolation == "read_committed",
            )
        )

    def list_offsets_or_errors(
        self, at: Mapping[TopicPartition, Start]
    ) -> dict[TopicPartition, ListedOffset | ClientError]:
        """Offsets as `list_offsets` returns them, or the error of a partition. Does not retry."""
        return self._run(lookups.list_offsets_or_errors(self._engine, lookups.start_timestamps(at)))

    # The cluster.

    def describe_cluster(self) -> ClusterInfo:
        return self._run(admin.describe_cluster(self._engine))

    def list_topics(self) -> dict[str, TopicInfo]:
        """All topics that are visible to the client, by name."""
        return self._run(lookups.list_topics(self._engine))

    def refresh_topics(self, topics: Sequence[str]) -> dict[str, TopicInfo]:
        """The current state of these topics, also for later calls; unknown ones are omitted."""
        return self._run(lookups.refresh_topics(self._engine, topics))

    def describe_topic(self, topic: str) -> TopicInfo:
        return self._run(admin.describe_topic(self._engine, topic))

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        assignment: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic, and wait until its partitions have leaders."""
        topic = NewTopic(name, partitions, replication_factor, configs or {}, assignment)
        self.create_topics([topic], validate_only=validate_only)

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> None:
        self._run(admin.create_topics(self._engine, topics, validate_only=validate_only))

    def delete_topic(self, *names: str) -> None:
        self._run(admin.delete_topics(self._engine, names))

    def create_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Increase the number of partitions of a topic to `count`."""
        self._run(admin.create_partitions(self._engine, topic, count, validate_only=validate_only))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete records before an offset (-1: all committed ones); returns the new log starts."""
        return self._run(admin.delete_records(self._engine, before))

    def describe_configs(
        self, resource: ConfigResource, names: Sequence[str] | None = None
    ) -> dict[str, ConfigEntry]:
        return self._run(admin.describe_configs(self._engine, resource, names))

    def alter_configs(
        self,
        resource: ConfigResource,
        changes: Sequence[ConfigChange],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change individual settings; the others stay unchanged."""
        self._run(admin.alter_configs(self._engine, resource, changes, validate_only=validate_only))

    def list_users(self) -> list[UserInfo]:
        """Users that can log in, with the mechanisms of their credentials."""
        return self._run(users.list_users(self._engine))

    def set_password(self, user: str, password: str, mechanism: str | None = None) -> None:
        """Create a user or replace its password, for one SCRAM mechanism or for all."""
        salt = os.urandom(SALT_BYTES)
        self._run(users.set_password(self._engine, user, password, mechanism, salt))

    def delete_user(self, user: str) -> None:
        """Delete a user's credentials. Brokers close the user's connections."""
        self._run(users.delete_user(self._engine, user))

    def create_token(
        self, owner: str | None = None, *, renewers: Sequence[str] = (), max_lifetime_ms: int = -1
    ) -> TokenInfo:
        """Create a delegation token for this client's user, or for another one."""
        return self._run(tokens.create_token(self._engine, owner, renewers, max_lifetime_ms))

    def list_tokens(self, owner: str | None = None) -> list[TokenInfo]:
        """Delegation tokens that this client's user can see; of one owner, or all."""
        return self._run(tokens.list_tokens(self._engine, owner))

    def renew_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Let a delegation token expire after `period_ms`; returns the expiry in ms since 1970."""
        return self._run(tokens.renew_token(self._engine, hmac, period_ms))

    def expire_token(self, hmac: bytes, period_ms: int = -1) -> int:
        """Set the expiry of a delegation token; delete it now if the period is negative."""
        return self._run(tokens.expire_token(self._engine, hmac, period_ms))

    def list_quotas(self) -> list[QuotaInfo]:
        """The limits of all users, client ids and IP addresses that have quotas."""
        return self._run(quotas.list_quotas(self._engine))

    def alter_quotas(
        self, entity: Mapping[str, str | None], limits: Mapping[str, float | None]
    ) -> None:
        """Set limits of one entity, see QuotaInfo, and remove those that are None."""
        self._run(quotas.alter_quotas(self._engine, entity, limits))

    def list_acls(self, selected: AclFilter = ALL_ACLS) -> list[Acl]:
        """ACLs that match a filter; all by default."""
        return self._run(acls.list_acls(self._engine, selected))

    def create_acls(self, new: Sequence[Acl]) -> None:
        """Add ACLs. ACLs that already exist stay unchanged."""
        self._run(acls.create_acls(self._engine, new))

    def delete_acls(self, selected: AclFilter) -> list[Acl]:
        """Delete the ACLs that match a filter, and return them."""
        return self._run(acls.delete_acls(self._engine, selected))

    def describe_log_dirs(self, node_id: int) -> list[LogDir]:
        return self._run(admin.describe_log_dirs(self._engine, node_id))

    def describe_producers(self, partition: TopicPartition) -> list[ActiveProducer]:
        return self._run(admin.describe_producers(self._engine, partition))

    # Reassignment and leaders.

    def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, RequestFailed]:
        """Begin to reassign partitions to other replicas; the preferred leader is first.

        None cancels a reassignment. Returns the errors of the partitions that were rejected.
        """
        return self._run(reassignment.alter_reassignments(self._engine, targets))

    def list_reassignments(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The reassignments in progress: all, or those of the given partitions."""
        return self._run(reassignment.list_reassignments(self._engine, partitions))

    def elect_leaders(
        self, partitions: Collection[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, RequestFailed | None]:
        """Elect the preferred replicas of all partitions, or of the given ones.

        With `unclean`, elect an out-of-sync replica of partitions that have no leader. Records can
        be LOST. The result None means that a leader was elected.
        """
        return self._run(reassignment.elect_leaders(self._engine, partitions, unclean=unclean))

    def describe_replicas(self, topics: Collection[str]) -> dict[TopicPartition, ReplicaInfo]:
        """The leader, in-sync replicas and eligible leaders of all partitions of these topics."""
        return self._run(reassignment.describe_replicas(self._engine, topics))

    def log_end_offsets(
        self, replicas: Mapping[TopicPartition, Collection[int]]
    ) -> dict[TopicPartition, dict[int, LogEnd]]:
        """The log end offsets of these replicas, if they respond; works without a leader."""
        return self._run(reassignment.log_end_offsets(self._engine, replicas))

    # Consumer groups.

    def list_groups(self, states: Sequence[str] = ()) -> list[GroupListing]:
        """The groups of the cluster, by name: all, or those in these states."""
        return self._run(groups.list_groups(self._engine, states))

    def describe_group(self, group: str) -> GroupInfo:
        """A group with its members and their partitions."""
        return self._run(groups.describe_group(self._engine, group))

    def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets."""
        self._run(groups.delete_group(self._engine, group))

    def group_offsets(
        self, group: str, partitions: Sequence[TopicPartition] | None = None
    ) -> dict[TopicPartition, GroupOffset]:
        """The committed offsets: all, or those of the given partitions."""
        return self._run(groups.group_offsets(self._engine, group, partitions))

    def commit_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, GroupOffset]
    ) -> None:
        """Set the offsets of a group without members."""
        self._run(groups.commit_group_offsets(self._engine, group, offsets))

    def delete_group_offsets(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Delete offsets of topics that the group does not read; an error code per partition."""
        return self._run(groups.delete_group_offsets(self._engine, group, partitions))

    def request(
        self, node_id: int, api_key: int, fields: Mapping[str, Any], **settings: Any
    ) -> dict[str, Any]:
        """Send a request to one broker without retries. Request and response are dictionaries."""

        def send() -> Operation[dict[str, Any]]:
            return (yield Send(node_id, api_key, fields, **settings))  # type: ignore[no-any-return]

        return self._run(send())
