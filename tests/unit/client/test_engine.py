"""The engine: reaching brokers, refreshing metadata, retrying operations. Scripted, no I/O."""

from collections.abc import Mapping
from socket import gaierror
from typing import Any

import pytest

from headrace.client.admin import topics
from headrace.client.core import lookups
from headrace.client.core.errors import (
    ClientClosed,
    Disconnected,
    ProtocolViolation,
    RequestFailed,
    TimedOut,
    TopicExists,
    UnknownTopic,
    Unreachable,
)
from headrace.client.core.metadata import Cluster
from headrace.client.core.operation import ANY, Operation, Send
from headrace.client.core.sockets import describe_failure
from headrace.client.core.values import NewTopic
from headrace.model.topics import TopicPartition
from headrace.wire.apis import CREATE_TOPICS, LIST_OFFSETS, METADATA
from headrace.wire.codec import encode_request_body
from tests.unit.client.engine_scenario import Drop, Silence, World

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def listed(**changes: int) -> dict[str, int]:
    return {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": 5, **changes}


def test_connecting_finds_the_brokers() -> None:
    world = World(brokers=3)
    info = world.run(world.engine.start(lookups.connect(world.engine)))
    assert info.cluster_id == "c"
    assert [node.node_id for node in info.brokers] == [1, 2, 3]


def test_the_bootstrap_connection_becomes_the_brokers_own() -> None:
    world = World()
    world.run(world.engine.start(lookups.connect(world.engine)))
    world.answers[LIST_OFFSETS] = lambda node, request: {
        "topics": [{"name": "t", "partitions": [listed()]}]
    }
    world.run(world.engine.start(lookups.list_offsets(world.engine, {T0: -1})))
    assert len(world.links) == 1


def test_error_without_any_response_names_the_next_step() -> None:
    world = World(bootstrap="b1:9092,b2:9093", down={1, 2})
    with pytest.raises(Unreachable) as raised:
        world.run(world.engine.start(lookups.connect(world.engine)))
    assert str(raised.value) == (
        "cannot reach any of b1:9092,b2:9093: connection refused; is the broker running?"
    )
    assert world.now_ms < 2_000


def test_host_name_that_cannot_be_resolved_is_named_as_the_cause() -> None:
    world = World()
    outcome = world.engine.start(lookups.connect(world.engine))
    (effect,) = world.engine.poll(world.now_ms)
    reason = describe_failure(gaierror(-2, "Name or service not known"))
    world.engine.failed(effect.link, reason, world.now_ms)
    with pytest.raises(
        Unreachable, match=r"\(Name or service not known\); check the host name b1$"
    ):
        world.run(outcome)


def test_one_reachable_bootstrap_address_is_enough() -> None:
    world = World(bootstrap="b1:9092,b2:9092,b3:9092", brokers=3, down={1, 2})
    assert world.run(world.engine.start(lookups.connect(world.engine))).brokers


@pytest.mark.parametrize("fault", ["paused", "unconnectable"])
@pytest.mark.parametrize("seed", range(6))
def test_a_broker_that_never_responds_delays_connecting_by_a_second(seed: int, fault: str) -> None:
    world = World(bootstrap="b1:9092,b2:9092,b3:9092", brokers=3, seed=seed)
    getattr(world, fault).update({1, 2})
    assert world.run(world.engine.start(lookups.connect(world.engine))).brokers
    assert world.now_ms <= 1_000 + 2_000
    assert world.run(world.engine.start(lookups.list_topics(world.engine)))
    assert world.now_ms <= 1_000 + 2_000


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("paused", "accepted the connection, but did not respond in time"),
        ("unconnectable", "connecting to b2:9092 timed out"),
    ],
)
def test_brokers_that_never_respond_are_unreachable_after_one_attempt_each(
    fault: str, reason: str
) -> None:
    world = World(bootstrap="b1:9092,b2:9092,b3:9092", brokers=3)
    getattr(world, fault).update({1, 2, 3})
    with pytest.raises(Unreachable, match=reason):
        world.run(world.engine.start(lookups.connect(world.engine)))
    assert world.now_ms == 1_000 + 2_000 + world.engine.options.connect_timeout_ms


@pytest.mark.parametrize("fault", ["paused", "unconnectable"])
@pytest.mark.parametrize("seed", range(6))
def test_a_refresh_uses_another_broker_if_one_never_responds(seed: int, fault: str) -> None:
    world = World(brokers=3, seed=seed)
    world.run(world.engine.start(lookups.connect(world.engine)))
    getattr(world, fault).update({1, 2})
    world.cut(1)
    began_ms = world.now_ms
    assert world.run(world.engine.start(lookups.refresh_topics(world.engine, ["t"])))
    assert world.now_ms - began_ms <= 4_000


def test_a_request_to_any_broker_fails_at_its_deadline() -> None:
    world = World(bootstrap=",".join(f"b{node}:9092" for node in range(1, 50)), brokers=49)
    world.paused.update(range(1, 50))
    step = Send(ANY, METADATA, lookups.metadata_fields(None, create=False), timeout_ms=5_000)

    def operation() -> Operation[None]:
        yield step

    with pytest.raises(Disconnected, match="no broker responded in time"):
        world.run(world.engine.start(operation()))
    assert world.now_ms == 1_000 + 5_000


def test_a_broker_without_a_response_to_metadata_is_replaced_within_the_timeout() -> None:
    world = World(bootstrap="b1:9092,b2:9092", brokers=2)
    silent: list[int] = []

    def answer(node: int, request: dict[str, Any]) -> Mapping[str, Any]:
        if not silent or node in silent:
            silent.append(node)
            raise Silence
        return world.metadata(node, request)

    world.answers[METADATA] = answer
    assert world.run(world.engine.start(lookups.connect(world.engine))).brokers
    assert world.now_ms < 1_000 + world.engine.options.operation_timeout_ms


def test_connection_that_is_closed_after_its_first_request_is_unreachable_immediately() -> None:
    world = World(bootstrap="b1:9092,b2:9092", brokers=2)

    def drop(node: int, request: object) -> None:
        raise Drop

    world.answers[METADATA] = drop
    with pytest.raises(Unreachable, match="If it requires a login or TLS"):
        world.run(world.engine.start(lookups.connect(world.engine)))
    assert world.now_ms < 2_000


def test_server_that_is_not_a_broker_is_a_permanent_error() -> None:
    world = World()
    outcome = world.engine.start(lookups.connect(world.engine))
    effects = world.engine.poll(world.now_ms)
    link = effects[0].link
    world.engine.opened(link, world.now_ms)
    world.engine.poll(world.now_ms)
    world.engine.received(link, b"HTTP/1.1 400 Bad Request\r\n", world.now_ms)
    world.settle()
    with pytest.raises((ProtocolViolation, Unreachable), match="HTTP"):
        outcome.result()


def test_broker_that_accepts_without_a_response_is_unreachable() -> None:
    world = World()

    def silent(node: int, request: object) -> None:
        raise Silence

    world.answers[METADATA] = silent
    with pytest.raises((TimedOut, Unreachable)):
        world.run(world.engine.start(lookups.connect(world.engine)))


def test_new_leader_is_found_by_a_refresh() -> None:
    world = World(brokers=2)

    def answer(node: int, request: object) -> dict[str, object]:
        code = 0 if node == 2 else 6
        world.leaders["t"] = [2, 2]
        return {"topics": [{"name": "t", "partitions": [listed(error_code=code)]}]}

    world.answers[LIST_OFFSETS] = answer
    found = world.run(world.engine.start(lookups.list_offsets(world.engine, {T0: -1})))
    assert found[T0].offset == 5
    assert [asked.node for asked in world.requests(LIST_OFFSETS)] == [1, 2]


def test_offsets_are_requested_from_each_leader_and_only_failed_ones_again() -> None:
    world = World(brokers=2, leaders={"t": [1, 2]})
    failures = [6]

    def answer(node: int, request: dict[str, object]) -> dict[str, object]:
        code = failures.pop() if node == 2 and failures else 0
        part = listed(partition_index=node - 1, error_code=code, offset=node * 10)
        return {"topics": [{"name": "t", "partitions": [part]}]}

    world.answers[LIST_OFFSETS] = answer
    found = world.run(world.engine.start(lookups.list_offsets(world.engine, {T0: -1, T1: -1})))
    assert {place: at.offset for place, at in found.items()} == {T0: 10, T1: 20}
    assert [asked.node for asked in world.requests(LIST_OFFSETS)] == [1, 2, 2]


def test_unknown_topic_is_an_error_after_topic_absent_ms() -> None:
    world = World()
    with pytest.raises(UnknownTopic, match="unknown topic 'nope'"):
        world.run(world.engine.start(lookups.list_offsets(world.engine, {_place("nope"): -1})))
    assert 1_000 <= world.now_ms - 1_000 < 3_000


def test_topic_on_a_full_disk_is_an_immediate_error() -> None:
    world = World(leaders={})
    world.answers[METADATA] = lambda node, request: {
        **world.metadata(node, request),
        "topics": [{"error_code": 56, "name": "t", "partitions": []}],
    }
    with pytest.raises(RequestFailed, match="the broker's disk might be full"):
        world.run(world.engine.start(lookups.ensure_topics(world.engine, ["t"], create=True)))
    asked = [asked for asked in world.requests(METADATA) if asked.request["topics"]]
    assert len(asked) == 1


def test_topic_that_is_created_during_the_wait_is_used() -> None:
    world = World(leaders={})
    outcome = world.engine.start(lookups.ensure_topics(world.engine, ["t"], create=True))
    world.until(lambda: bool(world.requests(METADATA)))
    assert world.requests(METADATA)[-1].request["allow_auto_topic_creation"]
    world.leaders["t"] = [1]
    world.run(outcome)
    assert "t" in world.engine.cluster.topics


def test_an_operation_survives_broken_connections() -> None:
    world = World()
    drops = 3

    def answer(node: int, request: object) -> dict[str, object]:
        nonlocal drops
        if drops:
            drops -= 1
            raise Drop
        return {"topics": [{"name": "u", "error_code": 0}]}

    world.answers[CREATE_TOPICS] = answer
    world.leaders["u"] = [1]
    world.run(world.engine.start(topics.create_topics(world.engine, [NewTopic("u")])))
    assert len(world.requests(CREATE_TOPICS)) == 4


def test_permanent_error_is_raised_immediately() -> None:
    world = World()
    world.answers[CREATE_TOPICS] = lambda node, request: {
        "topics": [{"name": "t", "error_code": 36, "error_message": "it is there"}]
    }
    with pytest.raises(TopicExists, match="it is there"):
        world.run(world.engine.start(topics.create_topics(world.engine, [NewTopic("t")])))
    assert len(world.requests(CREATE_TOPICS)) == 1


def test_creation_of_a_topic_on_a_full_disk_fails_immediately() -> None:
    world = World()
    world.answers[CREATE_TOPICS] = lambda node, request: {
        "topics": [{"name": "t", "error_code": 56, "error_message": "no space left"}]
    }
    with pytest.raises(RequestFailed, match="no space left"):
        world.run(world.engine.start(topics.create_topics(world.engine, [NewTopic("t")])))
    assert len(world.requests(CREATE_TOPICS)) == 1


def test_retries_end_at_the_deadline_with_the_last_error() -> None:
    world = World()
    world.answers[CREATE_TOPICS] = lambda node, request: {
        "topics": [{"name": "t", "error_code": 41}]
    }
    with pytest.raises(TimedOut, match=r"creating topics .* NOT_CONTROLLER"):
        world.run(world.engine.start(topics.create_topics(world.engine, [NewTopic("t")])))
    assert world.now_ms <= 1_000 + 60_000


def test_pauses_between_connection_attempts_increase() -> None:
    world = World()
    world.run(world.engine.start(lookups.connect(world.engine)))
    world.down = {1}
    world.cut(1)
    outcome = world.engine.start(topics.describe_cluster(world.engine))
    opened: list[float] = []
    fail = world.engine.failed

    def failed(link: int, reason: str, now_ms: float) -> None:
        opened.append(now_ms)
        fail(link, reason, now_ms)

    world.engine.failed = failed  # type: ignore[method-assign]
    with pytest.raises(Unreachable, match="connection refused"):
        world.run(outcome)
    assert len(opened) < 200
    assert world.now_ms > 50_000


def test_a_restarted_broker_is_found_at_the_bootstrap_address() -> None:
    world = World()
    world.run(world.engine.start(lookups.connect(world.engine)))
    world.down = {1}
    world.cut(1)
    outcome = world.engine.start(topics.describe_cluster(world.engine))
    world.until(lambda: world.now_ms > 5_000)
    world.down = set()
    assert world.run(outcome).cluster_id == "c"


def test_closing_ends_every_operation() -> None:
    world = World()
    outcome = world.engine.start(lookups.connect(world.engine))
    world.engine.close(world.now_ms)
    with pytest.raises(ClientClosed):
        outcome.result()
    with pytest.raises(ClientClosed):
        world.engine.start(lookups.connect(world.engine)).result()


def test_a_topic_that_is_new_to_a_client_is_looked_up_without_a_pause() -> None:
    world = World()
    world.run(world.engine.start(lookups.connect(world.engine)))
    began_ms = world.now_ms
    world.run(world.engine.start(lookups.refresh_topics(world.engine, ["t"])))
    assert world.now_ms - began_ms < world.engine.options.retry_backoff_ms / 2
    world.run(world.engine.start(lookups.refresh_topics(world.engine, ["t"])))
    assert world.now_ms - began_ms >= world.engine.options.retry_backoff_ms


def test_metadata_is_refreshed_when_it_is_old() -> None:
    world = World()
    world.run(world.engine.start(lookups.ensure_topics(world.engine, ["t"], create=False)))
    before = len(world.requests(METADATA))
    world.pass_ms(299_000)
    assert len(world.requests(METADATA)) == before
    world.pass_ms(2_000)
    assert len(world.requests(METADATA)) == before + 1


def _metadata(epoch: int, leader: int, topic_id: int = 7) -> dict[str, object]:
    from uuid import UUID

    part = {
        "partition_index": 0,
        "leader_id": leader,
        "leader_epoch": epoch,
        "replica_nodes": [1, 2],
        "isr_nodes": [1],
    }
    topic = {
        "error_code": 0,
        "name": "t",
        "topic_id": UUID(int=topic_id),
        "is_internal": False,
        "partitions": [part],
    }
    brokers = [{"node_id": node, "host": "b", "port": 1, "rack": None} for node in (1, 2)]
    return {"controller_id": 1, "brokers": brokers, "topics": [topic]}


def test_an_older_leader_epoch_does_not_undo_a_newer_one() -> None:
    cluster = Cluster()
    cluster.apply(_metadata(epoch=5, leader=2), None)
    cluster.apply(_metadata(epoch=4, leader=1), None)
    assert cluster.leader("t", 0) == 2
    cluster.apply(_metadata(epoch=-1, leader=1), None)
    assert cluster.leader("t", 0) == 1


def test_recreated_topic_starts_with_its_own_epochs() -> None:
    cluster = Cluster()
    cluster.apply(_metadata(epoch=5, leader=2), None)
    cluster.apply(_metadata(epoch=0, leader=1, topic_id=8), None)
    assert cluster.leader("t", 0) == 1


def test_new_leader_in_a_response_is_used_only_if_its_epoch_is_newer() -> None:
    cluster = Cluster()
    cluster.apply(_metadata(epoch=5, leader=2), None)
    assert not cluster.apply_new_leader("t", 0, 1, 5)
    assert cluster.apply_new_leader("t", 0, 1, 6)
    assert cluster.leader("t", 0) == 1


def test_requests_are_written_in_every_version() -> None:
    for version in range(14):
        assert encode_request_body(METADATA, version, lookups.metadata_fields(["t"], create=True))


def _place(topic: str) -> TopicPartition:
    return TopicPartition(topic, 0)
