"""Bad input 29 to 31: crowds of groups and members, absurd timeouts, commits of strangers."""

import struct
from collections.abc import Iterator

import pytest

from headrace.model.errors import ErrorCode
from tests.broker.group_member import (
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    SYNC_GROUP,
    RawMember,
    commit,
    commit_body,
    describe,
    fetch_offset,
    join_body,
    make_offsets_topic,
)
from tests.broker.raw import RawConnection, WatchedBroker, eventually

MIB = 1 << 20
GROUPS = 10_000
JOINS = 30_000
"""More than the ids that the broker remembers."""
IN_FLIGHT = 500
SIZE_MAX = 5


@pytest.fixture(scope="module")
def target_settings() -> dict[str, str]:
    # The delay is long enough for a full group to gather in its first rebalance.
    return {"group.initial.rebalance.delay.ms": "300", "group.max.size": str(SIZE_MAX)}


@pytest.fixture
def wire(target: WatchedBroker) -> Iterator[RawConnection]:
    with target.connect() as connection:
        make_offsets_topic(connection)
        yield connection


@pytest.fixture
def topic(wire: RawConnection, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.name))}"
    wire.create_topic(name)
    return name


@pytest.mark.timeout(300)
def test_number_of_joins_without_an_id_is_limited(
    target: WatchedBroker, wire: RawConnection
) -> None:
    frames = [
        wire.frame(JOIN_GROUP, 5, join_body(f"crowd {number % 1000}")) for number in range(1000)
    ]
    before = target.memory_bytes()
    for start in range(0, JOINS, IN_FLIGHT):
        at = start % 1000
        wire.send(b"".join(frames[at : at + IN_FLIGHT]))
        for _ in range(IN_FLIGHT):
            answer = wire.read_frame()
            assert struct.unpack_from(">h", answer, 8)[0] == ErrorCode.MEMBER_ID_REQUIRED
    assert target.memory_bytes() - before < 64 * MIB


@pytest.mark.timeout(300)
def test_ten_thousand_groups_leave_the_others_unaffected(
    target: WatchedBroker, wire: RawConnection, topic: str
) -> None:
    before = target.memory_bytes()
    for start in range(0, GROUPS, IN_FLIGHT):
        numbers = range(start, start + IN_FLIGHT)
        wire.send(
            b"".join(
                wire.frame(OFFSET_COMMIT, 7, commit_body(f"group {number}", topic, number))
                for number in numbers
            )
        )
        for _ in numbers:
            reply = wire.read_answer(OFFSET_COMMIT, 7)
            assert reply["topics"][0]["partitions"][0]["error_code"] == 0
    assert fetch_offset(wire, "group 1234", topic) == (1234, 0)
    assert target.memory_bytes() - before < 64 * MIB


def test_group_accepts_members_up_to_its_limit(target: WatchedBroker, wire: RawConnection) -> None:
    members = [RawMember(target.port, "full") for _ in range(SIZE_MAX + 1)]
    try:
        for member in members:
            member.begin_join()
            member.end_join()
        for member in members[:SIZE_MAX]:
            member.begin_join()
        eventually("the group is full", lambda: len(describe(wire, "full")["members"]) == SIZE_MAX)
        members[SIZE_MAX].begin_join()
        reply = members[SIZE_MAX].end_join()
        assert reply["error_code"] == ErrorCode.GROUP_MAX_SIZE_REACHED
    finally:
        for member in members:
            member.connection.sock.close()


def test_ten_megabytes_of_metadata_are_rejected_and_not_kept(
    target: WatchedBroker, wire: RawConnection
) -> None:
    before = target.memory_bytes()
    protocols = [{"name": "range", "metadata": bytes(10 * MIB)}]
    for number in range(5):
        body = join_body(f"fat {number}", protocols=protocols)
        reply = wire.ask(JOIN_GROUP, 3, body)
        assert reply["error_code"] == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert describe(wire, f"fat {number}")["group_state"] == "Dead"
    assert target.memory_bytes() - before < 48 * MIB


def test_too_large_assignment_is_an_error_for_its_group_only(
    target: WatchedBroker, wire: RawConnection
) -> None:
    with RawMember(target.port, "large assignment") as member:
        member.join()
        reply = member.sync({member.member_id: bytes(2 * MIB)})
        assert reply["error_code"] == ErrorCode.UNKNOWN_SERVER_ERROR
        member.join()
        assert member.sync({member.member_id: b"small"})["assignment"] == b"small"


@pytest.mark.parametrize("timeout_ms", [1, 0, -1, 31_536_000, 2**31 - 1])
def test_invalid_session_timeout_is_rejected(wire: RawConnection, timeout_ms: int) -> None:
    reply = wire.ask(JOIN_GROUP, 5, join_body("timeouts", session_timeout_ms=timeout_ms))
    assert reply["error_code"] == ErrorCode.INVALID_SESSION_TIMEOUT
    assert describe(wire, "timeouts")["group_state"] == "Dead"


def test_a_commit_for_a_topic_that_does_not_exist_is_rejected(
    wire: RawConnection, topic: str
) -> None:
    assert commit(wire, "g", "nowhere", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    code = commit(wire, "g", topic, 1, partition_index=7)
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_commit_with_a_megabyte_of_metadata_is_rejected(wire: RawConnection, topic: str) -> None:
    body = commit_body("chatty", topic, 1, committed_metadata="x" * MIB)
    reply = wire.ask(OFFSET_COMMIT, 8, body)
    code = reply["topics"][0]["partitions"][0]["error_code"]
    assert code == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert fetch_offset(wire, "chatty", topic) == (-1, 0)


@pytest.mark.parametrize(
    ("stranger", "generation", "error"),
    [
        (False, 0, ErrorCode.ILLEGAL_GENERATION),
        (False, 2, ErrorCode.ILLEGAL_GENERATION),
        (True, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (True, -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commit_of_an_unknown_member_or_an_old_generation_is_rejected(
    target: WatchedBroker, topic: str, stranger: bool, generation: int, error: ErrorCode
) -> None:
    with RawMember(target.port, f"strict {stranger} {generation}") as member:
        member.live()
        body = commit_body(member.group, topic, 1) | {
            "member_id": "stranger" if stranger else member.member_id,
            "generation_id_or_member_epoch": generation,
        }
        reply = member.connection.ask(OFFSET_COMMIT, 7, body)
        assert reply["topics"][0]["partitions"][0]["error_code"] == error


@pytest.mark.parametrize("name", ["", "g" * 32_768], ids=["empty", "longer than a record holds"])
def test_invalid_group_name_is_rejected(wire: RawConnection, name: str) -> None:
    member = {"member_id": "m", "group_instance_id": None, "reason": None}
    asked = {"group_id": name, "generation_id": 1, **member}
    bodies = {
        JOIN_GROUP: (9, join_body(name)),
        SYNC_GROUP: (5, asked | {"protocol_type": "c", "protocol_name": "r", "assignments": []}),
        HEARTBEAT: (4, asked),
        LEAVE_GROUP: (5, asked | {"members": [member]}),
    }
    for api_key, (version, body) in bodies.items():
        reply = wire.ask(api_key, version, body)
        assert reply["error_code"] == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("name", ["", "i" * 250])
def test_instance_id_that_is_too_long_is_rejected(wire: RawConnection, name: str) -> None:
    reply = wire.ask(JOIN_GROUP, 5, join_body("instances", group_instance_id=name))
    assert reply["error_code"] == ErrorCode.INVALID_REQUEST
