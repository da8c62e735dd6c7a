"""Real clients in consumer groups: they share partitions, join, leave and resume."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import RunningBroker
from tests.interop.client import Record
from tests.interop.librdkafka import Librdkafka
from tests.interop.members import (
    MEMBERS,
    ConsumerProtocolMember,
    HeadraceMember,
    LibrdkafkaMember,
    Living,
    Member,
)
from tests.interop.security import start_broker

PARTITIONS = 4
RECORDS = 10
"""In each partition."""
DEADLINE_S = 30.0
SETTINGS = {
    "group.initial.rebalance.delay.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
}
"""Not 0: kafka-python's leader can assign nothing before it has the metadata of the topic."""
Join = Callable[..., Living]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir = tmp_path_factory.mktemp("groups") / "data"
    with start_broker(data_dir, SETTINGS) as broker:
        yield broker.address


@pytest.fixture
def mortal_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with start_broker(tmp_path / "data", SETTINGS) as broker:
        yield broker


@pytest.fixture(params=MEMBERS)
def kind(request: pytest.FixtureRequest) -> type[Member]:
    return MEMBERS[request.param]


@pytest.fixture(params=MEMBERS)
def other(request: pytest.FixtureRequest) -> type[Member]:
    return MEMBERS[request.param]


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def filled(address: str) -> str:
    """A topic with records in every partition."""
    client = Librdkafka(address)
    topic = f"topic-{uuid.uuid4().hex[:8]}"
    client.create_topic(topic, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        client.produce(topic, [Record(b"v")] * RECORDS, partition=partition)
    return topic


@pytest.fixture
def join(address: str, filled: str, group: str) -> Iterator[Join]:
    """Create members of one group, which all leave at the end."""
    members: list[Living] = []

    def joined(kind: type[Member], **settings: Any) -> Living:
        members.append(Living(kind, address, group, filled, **settings))
        return members[-1]

    yield joined
    leave_together(members)


def leave_together(members: list[Living]) -> None:
    """Who rejoins because another left cannot leave before the rest has rejoined."""
    for member in members:
        member.leave()
    for member in members:
        member.close()


def until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)


def share(members: list[Living]) -> bool:
    """Whether all partitions have one owner, and everyone some."""
    owned = [member.owned for member in members]
    return all(owned) and sorted(each for own in owned for each in own) == list(range(PARTITIONS))


def owns_all(member: Living) -> Callable[[], bool]:
    return lambda: len(member.owned) == PARTITIONS


def test_next_member_continues_at_the_committed_offsets(
    kind: type[Member], other: type[Member], join: Join, address: str, filled: str
) -> None:
    first = join(kind)
    until("all is read", lambda: len(first.read) == PARTITIONS * RECORDS)
    first.commit(dict.fromkeys(range(PARTITIONS), RECORDS))
    first.close()
    Librdkafka(address).produce(filled, [Record(b"new")] * 3, partition=1)
    second = join(other)
    until("the rest is read", lambda: len(second.read) >= 3)
    assert second.read == {(1, RECORDS), (1, RECORDS + 1), (1, RECORDS + 2)}


def test_partitions_of_a_leaving_member_are_assigned_to_the_other(
    kind: type[Member], other: type[Member], join: Join
) -> None:
    # Range is what all three know.
    first = join(kind)
    until("the first has all", owns_all(first))
    second = join(other)
    until("both share", lambda: share([first, second]))
    second.close()
    until("the first has all again", owns_all(first))


def test_metadata_of_a_commit_is_returned(kind: type[Member], join: Join) -> None:
    member = join(kind)
    until("it has all", owns_all(member))
    member.commit({2: 7}, "where I was")
    assert member.committed(1) is None
    found = member.committed(2)
    assert found is not None
    assert found[0] == 7
    member.close()
    reader = join(LibrdkafkaMember)
    until("the reader has all", owns_all(reader))
    assert reader.committed(2) == (7, "where I was")


def test_restarted_static_member_keeps_its_partitions_without_a_rebalance(
    join: Join,
) -> None:
    one, two = (join(LibrdkafkaMember, **{"group.instance.id": name}) for name in ("one", "two"))
    until("both share", lambda: share([one, two]))
    owned = two.owned, one.owned
    two.close()
    again = join(LibrdkafkaMember, **{"group.instance.id": "two"})
    until("it is back", lambda: bool(again.owned))
    assert (again.owned, one.owned) == owned


def test_cooperative_members_revoke_only_reassigned_partitions(join: Join) -> None:
    settings = {"partition.assignment.strategy": "cooperative-sticky"}
    first = join(LibrdkafkaMember, **settings)
    until("the first has all", owns_all(first))
    second = join(LibrdkafkaMember, **settings)
    kept = set(range(PARTITIONS))

    def both_share() -> bool:
        nonlocal kept
        kept &= first.owned
        return share([first, second])

    until("both share", both_share)
    assert len(kept) == PARTITIONS // 2


def test_six_members_of_three_clients_own_all_partitions(join: Join) -> None:
    members = [join(kind) for kind in list(MEMBERS.values()) * 2]

    def is_each_owned_once() -> bool:
        owned = [partition for member in members for partition in member.owned]
        return sorted(owned) == list(range(PARTITIONS))

    def is_all_read() -> bool:
        found: set[tuple[int, int]] = set()
        return len(found.union(*(member.read for member in members))) == PARTITIONS * RECORDS

    until("each partition is owned once", is_each_owned_once)
    until("all is read", is_all_read)


@pytest.mark.parametrize("is_first", [True, False])
def test_own_member_works_as_leader_and_follower_with_other_clients(
    other: type[Member], join: Join, is_first: bool
) -> None:
    """The leader decodes the subscription of the other member, which decodes the assignment."""
    kinds: list[type[Member]] = [HeadraceMember, other]
    first, second = (join(kind) for kind in (kinds if is_first else kinds[::-1]))
    until("both share", lambda: share([first, second]))
    until("all is read", lambda: len(first.read | second.read) == PARTITIONS * RECORDS)
    second.close()
    until("the first has all again", owns_all(first))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_own_member_and_librdkafka_rebalance_cooperatively(join: Join, protocol: str) -> None:
    is_new = protocol == "consumer"
    ours: dict[str, Any] = {"protocol": protocol, "assignors": ("cooperative-sticky",)}
    theirs = {} if is_new else {"partition.assignment.strategy": "cooperative-sticky"}
    first = join(HeadraceMember, **ours)
    until("ours has all", owns_all(first))
    second = join(ConsumerProtocolMember if is_new else LibrdkafkaMember, **theirs)
    until("both share", lambda: share([first, second]))
    first.close()
    until("theirs has all", owns_all(second))
    third = join(HeadraceMember, **ours)
    until("both share again", lambda: share([second, third]))


@pytest.mark.parametrize("kind", [*MEMBERS.values(), HeadraceMember])
def test_members_continue_after_the_broker_was_killed(
    kind: type[Member], mortal_broker: RunningBroker, group: str
) -> None:
    client = Librdkafka(mortal_broker.address)
    client.create_topic("t", partitions=PARTITIONS)
    client.produce("t", [Record(b"v")] * RECORDS)
    with closing(Living(kind, mortal_broker.address, group, "t")) as member:
        until("all is read", lambda: len(member.read) == RECORDS)
        member.commit({0: RECORDS})
        mortal_broker.kill()
        mortal_broker.restart()
        Librdkafka(mortal_broker.address).produce("t", [Record(b"new")])
        until("what is new is read", lambda: (0, RECORDS) in member.read)
        found = member.committed(0)
        assert found is not None
        assert found[0] == RECORDS
        until("it is a member again", owns_all(member))
        member.commit({0: RECORDS + 1})
