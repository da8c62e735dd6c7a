"""Groups of a live broker: state after a kill, disconnected members, and all versions."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from headrace.coordinator.placement import partition_for
from headrace.group.records import GroupKey, OffsetKey, OffsetValue, decode_key, decode_value
from headrace.model.errors import ErrorCode
from headrace.record.decode import read_batches, read_records
from headrace.testing import RunningBroker
from headrace.wire.apis import APIS
from tests.broker.group_member import (
    FIND_COORDINATOR,
    JOIN_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    RawMember,
    commit,
    commit_body,
    describe,
    fetch_offset,
    join_body,
    make_offsets_topic,
)
from tests.broker.raw import RawConnection, WatchedBroker, eventually, one_batch

KILLS = 6
COMMITTERS = 4


@pytest.fixture(scope="module")
def target_settings() -> dict[str, str]:
    return {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}


@pytest.fixture
def wire(target: WatchedBroker) -> Iterator[RawConnection]:
    with target.connect() as connection:
        make_offsets_topic(connection)
        yield connection


def test_member_with_rebalance_timeout_0_gets_its_assignment(
    target: WatchedBroker, wire: RawConnection
) -> None:
    """As in the tests of kafkajs. The heartbeat gives the broker time to remove the member."""
    with RawMember(target.port, "hasty") as member:
        member.join(rebalance_timeout_ms=0)
        assert member.heartbeat() == ErrorCode.NONE
        assert member.sync({member.member_id: b"mine"})["assignment"] == b"mine"


def test_acknowledged_commits_survive_every_kill(headrace_broker: RunningBroker) -> None:
    """I21: many commits in flight, and kill -9 at a random time."""
    with RawConnection(headrace_broker.port) as wire:
        wire.create_topic("t")
        make_offsets_topic(wire)
    acked = [0] * COMMITTERS
    tried = [0] * COMMITTERS
    is_over = threading.Event()

    def go_on_committing(number: int) -> None:
        while not is_over.is_set():
            try:
                with RawConnection(headrace_broker.port) as wire:
                    while not is_over.is_set():
                        tried[number] += 1
                        if commit(wire, f"group {number}", "t", tried[number]) == 0:
                            acked[number] = tried[number]
            except OSError:
                is_over.wait(0.01)

    threads = [
        threading.Thread(target=go_on_committing, args=(number,)) for number in range(COMMITTERS)
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            goal = [number + 20 for number in acked]
            eventually("all have committed again", partial(is_past, acked, goal))
            headrace_broker.kill()
            promised = list(acked)
            headrace_broker.restart()
            for number in range(COMMITTERS):
                check_kept(headrace_broker, f"group {number}", promised[number], tried, number)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def is_past(numbers: list[int], goal: list[int]) -> bool:
    return all(number > least for number, least in zip(numbers, goal, strict=True))


def check_kept(
    broker: RunningBroker, group: str, promised: int, tried: list[int], number: int
) -> None:
    with RawConnection(broker.port) as wire:
        found = [(-1, 0)]

        def is_loaded() -> bool:
            found[0] = fetch_offset(wire, group, "t")
            return found[0][1] == 0

        eventually("the group is loaded", is_loaded)
    assert promised <= found[0][0] <= tried[number]


def test_a_generation_survives_a_kill_and_its_members_need_not_rejoin(tmp_path: Path) -> None:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with (
        RunningBroker.start(tmp_path / "data", settings=settings) as broker,
        RawMember(broker.port, "g") as member,
    ):
        make_offsets_topic(member.connection)
        member.live()
        broker.kill()
        broker.restart()
        member.reconnect()
        eventually("the group is loaded", lambda: describe(member.connection, "g")["members"] != [])
        assert member.heartbeat() == 0
        assert member.sync({})["assignment"] == b"all"


def test_commits_and_generations_wait_for_a_sync_if_flush_messages_is_1(
    tmp_path: Path,
) -> None:
    settings = {"group.initial.rebalance.delay.ms": "0", "log.flush.interval.messages": "1"}
    with (
        RunningBroker.start(tmp_path / "data", settings=settings) as broker,
        RawMember(broker.port, "g") as member,
    ):
        make_offsets_topic(member.connection)
        member.connection.create_topic("t")
        for offset in range(20):
            assert commit(member.connection, "other", "t", offset) == 0
        assert fetch_offset(member.connection, "other", "t") == (19, 0)
        member.live()
        assert member.heartbeat() == 0


def test_stopping_broker_responds_to_members_that_wait_for_a_rebalance(tmp_path: Path) -> None:
    settings = {"group.initial.rebalance.delay.ms": "60000"}
    with (
        RunningBroker.start(tmp_path / "data", settings=settings) as broker,
        RawMember(broker.port, "g") as member,
        RawConnection(broker.port) as wire,
    ):
        make_offsets_topic(wire)
        member.begin_join()
        member.end_join()
        member.begin_join()
        eventually("it waits", lambda: len(describe(wire, "g")["members"]) == 1)
        broker.stop()
        assert member.end_join()["error_code"] == ErrorCode.NOT_COORDINATOR


def test_member_that_disconnects_during_a_join_does_not_block_the_others(
    target: WatchedBroker, wire: RawConnection
) -> None:
    with RawMember(target.port, "vanishing") as stays, RawMember(target.port, "vanishing") as goes:
        stays.live()
        # Before version 4, a member joins without an id. When its connection closes, it is removed.
        body = join_body("vanishing")
        goes.connection.send(goes.connection.frame(JOIN_GROUP, 2, body))
        eventually("it waits", lambda: len(describe(wire, "vanishing")["members"]) == 2)
        goes.connection.sock.close()
        eventually("it is gone", lambda: len(describe(wire, "vanishing")["members"]) == 1)
        assert stays.join()["generation_id"] == 2


def test_silent_member_is_removed_after_its_session_timeout(
    target: WatchedBroker, wire: RawConnection
) -> None:
    with RawMember(target.port, "silent") as member:
        member.join(session_timeout_ms=200)
        member.sync({member.member_id: b"all"})
        eventually("it is gone", lambda: describe(wire, "silent")["members"] == [])
        assert describe(wire, "silent")["group_state"] == "Empty"
        assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_records_have_the_partition_and_format_of_kafka(
    target: WatchedBroker, wire: RawConnection
) -> None:
    wire.create_topic("kept")
    assert commit(wire, "keeper", "kept", 42, committed_metadata="here") == 0
    with RawMember(target.port, "keeper") as member:
        member.live()
    found = wire.fetch("__consumer_offsets", 0, partition=partition_for("keeper", 50))
    records = [
        record
        for batch in read_batches(found["records"])
        for record in read_records(batch)
        if record.key is not None
    ]
    by_key = {decode_key(record.key): record.value for record in records if record.key}
    key = OffsetKey("keeper", "kept", 0)
    value = decode_value(key, by_key[key])
    assert isinstance(value, OffsetValue)
    assert (value.offset, value.metadata) == (42, "here")
    assert GroupKey("keeper") in by_key


def test_deletion_of_a_topic_deletes_its_offsets(wire: RawConnection) -> None:
    wire.create_topic("doomed")
    assert commit(wire, "reader", "doomed", 42) == 0
    wire.ask(20, 3, {"topic_names": ["doomed"], "timeout_ms": 30_000})
    eventually("the offset is gone", lambda: fetch_offset(wire, "reader", "doomed") == (-1, 0))


@pytest.mark.parametrize("version", range(APIS[JOIN_GROUP].version_max + 1))
def test_joining_works_in_every_version(
    target: WatchedBroker, wire: RawConnection, version: int
) -> None:
    group = f"joined by {version}"
    reply = wire.ask(JOIN_GROUP, version, join_body(group))
    if version >= 4:
        assert reply["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
        reply = wire.ask(JOIN_GROUP, version, join_body(group, reply["member_id"]))
    assert (reply["error_code"], reply["generation_id"]) == (0, 1)
    assert (reply["protocol_name"], reply["leader"]) == ("range", reply["member_id"])
    assert [member["member_id"] for member in reply["members"]] == [reply["member_id"]]


@pytest.mark.parametrize("version", range(APIS[FIND_COORDINATOR].version_max + 1))
def test_a_coordinator_is_found_in_every_version(
    target: WatchedBroker, wire: RawConnection, version: int
) -> None:
    body = {"key": "g", "key_type": 0, "coordinator_keys": ["g", "h"]}
    reply = wire.ask(FIND_COORDINATOR, version, body)
    for found in reply["coordinators"] if version >= 4 else [reply]:
        assert (found["error_code"], found["port"]) == (0, target.port)


@pytest.mark.parametrize(
    ("key_type", "error"),
    [
        (1, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (2, ErrorCode.INVALID_REQUEST),
        (99, ErrorCode.INVALID_REQUEST),
    ],
)
def test_other_coordinator_types_get_a_permanent_error(
    wire: RawConnection, key_type: int, error: ErrorCode
) -> None:
    reply = wire.ask(FIND_COORDINATOR, 6, {"key_type": key_type, "coordinator_keys": ["x"]})
    (found,) = reply["coordinators"]
    assert (found["error_code"], found["node_id"]) == (error, -1)


@pytest.mark.parametrize("version", range(1, APIS[OFFSET_FETCH].version_max + 1))
def test_offsets_are_fetched_in_every_version(wire: RawConnection, version: int) -> None:
    topic = f"fetched{version}"
    wire.create_topic(topic)
    assert commit(wire, topic, topic, 7, committed_metadata="m", committed_leader_epoch=3) == 0
    topic_id = wire.topic_id(topic)
    asked = [{"name": topic, "topic_id": topic_id, "partition_indexes": [0, 1]}]
    group = {"group_id": topic, "topics": asked, "member_id": None, "member_epoch": -1}
    reply = wire.ask(OFFSET_FETCH, version, {**group, "groups": [group], "require_stable": True})
    found = reply["groups"][0] if version >= 8 else reply
    first, second = found["topics"][0]["partitions"]
    assert (first["committed_offset"], first["metadata"]) == (7, "m")
    assert first.get("committed_leader_epoch", 3) == 3
    assert (second["committed_offset"], second["error_code"]) == (-1, 0)
    if version >= 2:
        everything = {**group, "topics": None}
        body = {**everything, "groups": [everything], "require_stable": False}
        reply = wire.ask(OFFSET_FETCH, version, body)
        found = reply["groups"][0] if version >= 8 else reply
        assert [each.get("name", topic) for each in found["topics"]] == [topic]
        assert [each.get("topic_id", topic_id) for each in found["topics"]] == [topic_id]


def test_offsets_are_committed_by_topic_id(wire: RawConnection) -> None:
    wire.create_topic("committed-by-id")
    body = commit_body("committed-by-id", "", 11)
    for topic_id, error in (
        (wire.topic_id("committed-by-id"), ErrorCode.NONE),
        (uuid4(), ErrorCode.UNKNOWN_TOPIC_ID),
    ):
        body["topics"][0]["topic_id"] = topic_id
        (topic,) = wire.ask(OFFSET_COMMIT, 10, body)["topics"]
        assert (topic["topic_id"], topic["partitions"][0]["error_code"]) == (topic_id, error)
    assert fetch_offset(wire, "committed-by-id", "committed-by-id") == (11, ErrorCode.NONE)


def test_groups_are_listed_by_state(target: WatchedBroker, wire: RawConnection) -> None:
    wire.create_topic("listed")
    commit(wire, "listed and empty", "listed", 1)
    with RawMember(target.port, "listed and stable") as member:
        member.live()

        def listed(*states: str) -> set[str]:
            reply = wire.ask(LIST_GROUPS, 5, {"states_filter": states, "types_filter": ["Classic"]})
            names = {group["group_id"] for group in reply["groups"]}
            return {name for name in names if name.startswith("listed")}

        assert listed() == {"listed and empty", "listed and stable"}
        assert listed("Stable") == {"listed and stable"}
        assert listed("empty") == {"listed and empty"}


def test_client_cannot_write_to_the_offsets_topic(wire: RawConnection) -> None:
    reply = wire.produce("__consumer_offsets", one_batch(b"forged"))
    assert reply["error_code"] == ErrorCode.INVALID_TOPIC
