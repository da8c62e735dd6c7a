"""Invalid input for a cluster, on the listener for clients and on the internal one.

Leaders, epochs and ISRs stay unchanged, and all replicas acknowledge the records of a producer that
runs during the whole test.
"""

import asyncio
import random
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from headrace.coordination import layout
from headrace.coordination.zookeeper import ZooKeeperStore
from headrace.model.cluster import BrokerInfo, Endpoint
from headrace.model.errors import ErrorCode
from headrace.testing import RunningCluster
from headrace.wire.apis import (
    ALLOCATE_PRODUCER_IDS,
    ALTER_PARTITION,
    API_VERSIONS,
    APIS,
    ASSIGN_REPLICAS_TO_DIRS,
    BROKER_HEARTBEAT,
    CREATE_TOPICS,
    ENVELOPE,
    FETCH,
    METADATA,
    PRODUCE,
)
from headrace.wire.codec import Message, encode_request
from tests.broker.raw import RawConnection, framed, header, one_batch
from tests.cluster.history import Load, Topic, check
from tests.wire.fuzz import Fuzzer

SETTINGS = {"headrace.partitions.max": "40", "offsets.topic.num.partitions": "2"}
FUZZ_FRAMES = 250
FETCH_VERSION = 17
BETWEEN_BROKERS = (
    ALTER_PARTITION,
    ENVELOPE,
    BROKER_HEARTBEAT,
    ALLOCATE_PRODUCER_IDS,
    ASSIGN_REPLICAS_TO_DIRS,
)


class Target:
    """A cluster, a topic with one partition, and the state of both in the store."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster
        self.topic = Topic(cluster, "target", 1, min_insync_replicas="2")
        self.topic.wait_until_in_sync()
        self.infos: dict[int, BrokerInfo] = {}
        self._seen: dict[int, int] = {}
        """How much of each broker's log was looked at."""
        asyncio.run(self._look())
        self.follower = next(node for node in self.state.isr if node != self.state.leader)
        self.bystander = next(node for node in self.infos if node != self.controller)

    async def _look(self) -> None:
        store = await ZooKeeperStore.open(self.cluster.zookeeper.connect)
        for node_id in self.cluster.brokers:
            data, stat = await store.get(layout.broker_path(node_id))
            self.infos[node_id] = layout.decode_broker(node_id, data, stat.czxid)
        data, _ = await store.get(layout.CONTROLLER)
        self.controller = layout.decode_controller(data)
        data, _ = await store.get(layout.topic_path("target"))
        self.topic_id, assignment, _ = layout.decode_topic("target", data)
        path = layout.states_path("target", 0)
        data, _ = await store.get(path)
        (self.state,) = layout.decode_states(path, data, self.topic_id, assignment)
        await store.close()

    def check_unmoved(self) -> None:
        """Check that no leader, epoch or ISR has changed."""
        before, epochs, controller = self.state, self.epochs(), self.controller
        asyncio.run(self._look())
        assert (self.epochs(), self.controller) == (epochs, controller)
        assert (self.state.leader, self.state.leader_epoch) == (before.leader, before.leader_epoch)
        assert self.state.isr == before.isr
        for broker in self.cluster.brokers.values():
            seen = self._seen.get(broker.node_id, 0)
            self._seen[broker.node_id] = broker.log_size()
            log = broker.log(seen)
            assert "Traceback" not in log, log[log.index("Traceback") :][:5000]

    def epochs(self) -> dict[int, int]:
        return {node_id: info.epoch for node_id, info in self.infos.items()}

    def endpoint(self, node_id: int) -> Endpoint:
        return next(e for e in self.infos[node_id].endpoints if e.listener == "INTERNAL")

    def internal(self, node_id: int) -> RawConnection:
        """As another broker would be connected."""
        end = self.endpoint(node_id)
        return RawConnection(end.port, host=end.host)

    def client(self, node_id: int) -> RawConnection:
        broker = self.cluster.brokers[node_id]
        return RawConnection(broker.port, host=broker.host)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, Load]]:
    """One cluster for all tests of this file, with a producer at work."""
    directory = tmp_path_factory.mktemp("cluster")
    with RunningCluster.start(directory, settings=SETTINGS) as cluster:
        target = Target(cluster)
        with Load(Topic(cluster, "load", min_insync_replicas="2")) as load:
            yield target, load
        check(load)
        assert not load.failed


@pytest.fixture
def target(running: tuple[Target, Load]) -> Iterator[Target]:
    target, load = running
    load.wait_for_more(10)
    yield target
    target.check_unmoved()
    load.wait_for_more(10)


def replica_fetch(
    target: Target,
    replica_id: int,
    epoch: int,
    *,
    offset: int | None = None,
    session_id: int = 0,
    session_epoch: int = 0,
) -> Message:
    """The fetch of a follower with all records before `offset`, or of one without partitions."""
    part = {
        "partition": 0,
        "current_leader_epoch": target.state.leader_epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": 0,
        "partition_max_bytes": 1 << 20,
    }
    parts = [] if offset is None else [part]
    return {
        "replica_state": {"replica_id": replica_id, "replica_epoch": epoch},
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": [{"topic_id": target.topic_id, "partitions": parts}] if parts else [],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


@pytest.mark.parametrize("api_key", BETWEEN_BROKERS)
def test_requests_between_brokers_are_rejected_from_clients(target: Target, api_key: int) -> None:
    version = APIS[api_key].version_max
    with target.client(target.controller) as client:
        client.send(framed(header(api_key, version, flexible=True) + bytes(64)))
        assert client.wait_closed() == b""
    with target.client(target.controller) as client:
        reply = client.ask(API_VERSIONS, 0, {})
    assert api_key not in {row["api_key"] for row in reply["api_keys"]}


def test_replica_fetch_requires_the_internal_listener_and_the_broker_epoch(
    target: Target,
) -> None:
    leader, epochs = target.state.leader, target.epochs()
    followers = [node for node in target.state.isr if node != leader]
    for node in followers:
        target.cluster.brokers[node].pause()
    try:
        with target.client(leader) as client, target.internal(leader) as broker:
            answer = client.produce("target", one_batch(b"not everywhere yet"), acks=1)
            offset = answer["base_offset"]
            for node in followers:
                # A follower that fetches after a record has it. A fetch of a client proves nothing.
                request = replica_fetch(target, node, epochs[node], offset=offset + 1)
                client.ask(FETCH, FETCH_VERSION, request)
                for claimed in (-1, 0, epochs[node] - 1, epochs[node] + 1, 2**63 - 1):
                    request = replica_fetch(target, node, claimed, offset=offset + 1)
                    reply = broker.ask(FETCH, FETCH_VERSION, request)
                    assert reply["error_code"] == ErrorCode.STALE_BROKER_EPOCH
                    assert reply["responses"] == []
            assert client.end_offset("target") <= offset
            assert client.fetch("target", offset)["high_watermark"] <= offset
    finally:
        for node in followers:
            target.cluster.brokers[node].resume()


def test_replica_fetch_of_an_unknown_broker_is_rejected(target: Target) -> None:
    with target.internal(target.state.leader) as broker:
        for replica_id, claimed in ((99, -1), (99, 0), (2**31 - 1, -1)):
            request = replica_fetch(target, replica_id, claimed, offset=0)
            reply = broker.ask(FETCH, FETCH_VERSION, request)
            assert reply["error_code"] == ErrorCode.STALE_BROKER_EPOCH


def test_fetch_session_of_a_follower_belongs_to_its_connection(target: Target) -> None:
    who, epoch = target.follower, target.epochs()[target.follower]
    leader = target.state.leader

    def ask(broker: RawConnection, **session: int) -> Message:
        request = replica_fetch(target, who, epoch, **session)
        return broker.ask(FETCH, FETCH_VERSION, request)

    with target.internal(leader) as owner, target.internal(leader) as other:
        own = ask(owner)["session_id"]
        assert own > 0
        taken = ask(other, session_id=own, session_epoch=1)
        assert taken["error_code"] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert ask(other)["error_code"] == 0
        assert ask(other, session_id=own)["error_code"] == 0
        assert ask(owner, session_id=own, session_epoch=1)["error_code"] == 0


def alter_partition(target: Target, **changes: Any) -> Message:
    """A request of the leader that would be granted, but for the changes."""
    state = target.state
    members = [{"broker_id": n, "broker_epoch": target.epochs()[n]} for n in state.isr]
    part: Message = {
        "partition_index": 0,
        "leader_epoch": state.leader_epoch,
        "new_isr_with_epochs": members,
        "leader_recovery_state": 0,
        "partition_epoch": state.partition_epoch,
    }
    request: Message = {"broker_id": state.leader, "broker_epoch": target.epochs()[state.leader]}
    topic_id = changes.pop("topic_id", target.topic_id)
    request |= {key: changes.pop(key) for key in list(changes) if key in request}
    return {**request, "topics": [{"topic_id": topic_id, "partitions": [{**part, **changes}]}]}


def test_only_the_leader_can_change_its_isr(target: Target) -> None:
    state, epochs = target.state, target.epochs()
    rows = [{"broker_id": n, "broker_epoch": epochs[n]} for n in state.isr]
    stale = [{**row, "broker_epoch": row["broker_epoch"] - 1} for row in rows]
    whole: list[tuple[Message, ErrorCode]] = [
        ({"broker_epoch": epochs[state.leader] + 1}, ErrorCode.STALE_BROKER_EPOCH),
        ({"broker_epoch": -1}, ErrorCode.STALE_BROKER_EPOCH),
        ({"broker_id": 99, "broker_epoch": -1}, ErrorCode.STALE_BROKER_EPOCH),
    ]
    single: list[tuple[Message, ErrorCode]] = [
        (
            {"broker_id": target.follower, "broker_epoch": epochs[target.follower]},
            ErrorCode.INVALID_REQUEST,
        ),
        ({"leader_epoch": state.leader_epoch - 1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 2**31 - 1}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": -2}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"new_isr_with_epochs": []}, ErrorCode.INVALID_REQUEST),
        ({"new_isr_with_epochs": [*rows, *rows]}, ErrorCode.INVALID_REQUEST),
        (
            {"new_isr_with_epochs": [*rows, {"broker_id": 99, "broker_epoch": 0}]},
            ErrorCode.INVALID_REQUEST,
        ),
        ({"partition_index": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition_index": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition_index": 2**31 - 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": uuid4()}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"new_isr_with_epochs": stale}, ErrorCode.INELIGIBLE_REPLICA),
    ]
    with target.internal(target.controller) as broker:
        for changes, code in whole:
            reply = broker.ask(ALTER_PARTITION, 3, alter_partition(target, **changes))
            assert (reply["error_code"], reply["topics"]) == (code, []), changes
        for changes, code in single:
            reply = broker.ask(ALTER_PARTITION, 3, alter_partition(target, **changes))
            assert reply["error_code"] == 0
            assert reply["topics"][0]["partitions"][0]["error_code"] == code, changes
    with target.internal(target.bystander) as broker:
        reply = broker.ask(ALTER_PARTITION, 3, alter_partition(target))
        assert reply["error_code"] == ErrorCode.NOT_CONTROLLER


def test_controller_serves_only_registered_brokers(target: Target) -> None:
    epoch = target.epochs()[target.follower]
    requests: list[tuple[int, int, Message]] = [
        (ALLOCATE_PRODUCER_IDS, 0, {}),
        (
            BROKER_HEARTBEAT,
            1,
            {
                "current_metadata_offset": 0,
                "want_fence": False,
                "want_shut_down": True,
                "offline_log_dirs": [],
            },
        ),
        (ASSIGN_REPLICAS_TO_DIRS, 0, {"directories": []}),
    ]
    for api_key, version, body in requests:
        with target.internal(target.controller) as broker:
            for who, claimed in ((target.follower, epoch - 1), (target.follower, -1), (99, -1)):
                request = {"broker_id": who, "broker_epoch": claimed, **body}
                reply = broker.ask(api_key, version, request)
                assert reply["error_code"] == ErrorCode.STALE_BROKER_EPOCH
        with target.internal(target.bystander) as broker:
            request = {"broker_id": target.follower, "broker_epoch": epoch, **body}
            reply = broker.ask(api_key, version, request)
            assert reply["error_code"] == ErrorCode.NOT_CONTROLLER


def create_topics(name: str, **changes: Any) -> Message:
    topic = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 3,
        "assignments": [],
        "configs": [],
        **changes,
    }
    return {"topics": [topic], "timeout_ms": 30_000, "validate_only": False}


def envelope(
    frame: bytes, principal: bytes = b"User:ANONYMOUS", host: bytes = b"\x7f\0\0\1"
) -> Message:
    return {
        "request_data": frame,
        "request_principal": principal,
        "client_host_address": host,
    }


def test_an_envelope_carries_an_administrators_request_and_nothing_else(target: Target) -> None:
    honest = encode_request(CREATE_TOPICS, 5, 1, "raw", create_topics("from-an-envelope"))
    inner = encode_request(ENVELOPE, 0, 1, "raw", envelope(honest))
    wrong = [
        b"",
        b"\0",
        honest[:9],
        honest[:-12],
        b"\0\x13\0\x63" + honest[4:],
        b"\x27\x0f" + honest[2:],
        inner,
        encode_request(ENVELOPE, 0, 1, "raw", envelope(inner)),
        encode_request(ALTER_PARTITION, 3, 1, "raw", alter_partition(target)),
        encode_request(METADATA, 9, 1, "raw", {"topics": [], "allow_auto_topic_creation": True}),
        encode_request(PRODUCE, 9, 1, "raw", {"acks": 1, "timeout_ms": 1000, "topic_data": []}),
        header(API_VERSIONS, 0),
        bytes(4 << 20),
    ]
    with target.internal(target.controller) as broker:
        for frame in wrong:
            reply = broker.ask(ENVELOPE, 0, envelope(frame))
            assert reply["error_code"] == ErrorCode.INVALID_REQUEST, frame[:100]
            assert not reply["response_data"]
        reply = broker.ask(ENVELOPE, 0, envelope(honest, b"\xff" * 70_000))
        assert reply["error_code"] == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
        # A long principal and an invalid address are only text for the authorizer.
        reply = broker.ask(ENVELOPE, 0, envelope(honest, b"x" * 70_000, b"xyz"))
        assert reply["error_code"] == 0
    with target.internal(target.bystander) as broker:
        reply = broker.ask(ENVELOPE, 0, envelope(honest))
        assert reply["error_code"] == ErrorCode.NOT_CONTROLLER


def test_topics_that_the_cluster_cannot_hold_are_rejected_by_any_broker(target: Target) -> None:
    def assigned(*replicas: int) -> Message:
        row = {"partition_index": 0, "broker_ids": replicas}
        return {"num_partitions": -1, "replication_factor": -1, "assignments": [row]}

    wrong = [
        ({"replication_factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 100}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"num_partitions": 1_000_000}, ErrorCode.INVALID_PARTITIONS),
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        (assigned(1, 99), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned(1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned(-1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assigned(), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ]
    for node_id in (target.controller, target.bystander):
        with target.client(node_id) as client:
            for changes, code in wrong:
                reply = client.ask(CREATE_TOPICS, 5, create_topics("too-much", **changes))
                (slot,) = reply["topics"]
                assert slot["error_code"] == code, (changes, slot)
    assert "too-much" not in target.topic.admin.list_topics(timeout=10).topics


@pytest.mark.parametrize(
    "data",
    [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        framed(b"\0" * 7),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\0\xc8\x01\0\0\xc4\x03\x03" + bytes(190),
        framed(header(9999, 0)),
        framed(header(ALTER_PARTITION, 3, flexible=True) + bytes(12) + b"\xff\xff\xff\xff\x0f"),
    ],
    ids=range(8),
)
def test_invalid_request_between_brokers_closes_the_connection(target: Target, data: bytes) -> None:
    with target.internal(target.controller) as broker:
        broker.send(data)
        assert broker.wait_closed() == b""


def test_every_listener_survives_random_input(target: Target) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # pytest shows it where the test fails.
    leader = target.cluster.brokers[target.state.leader]
    ends = [target.endpoint(node_id) for node_id in {target.state.leader, target.controller}]
    places = [(leader.host, leader.port), *((end.host, end.port) for end in ends)]
    for host, port in places:
        fuzzer = Fuzzer(port, seed, host)
        try:
            for _ in range(FUZZ_FRAMES):
                fuzzer.step()
        finally:
            fuzzer.close()
