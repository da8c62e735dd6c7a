"""librdkafka as a member by the newer protocol (KIP-848), alone and with members of the classic."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from headrace.client import Client, connect
from tests.interop.client import Record
from tests.interop.librdkafka import Librdkafka
from tests.interop.members import (
    AiokafkaMember,
    ConsumerProtocolMember,
    KafkaPythonMember,
    LibrdkafkaMember,
    Living,
    Member,
)
from tests.interop.security import of_headrace, of_librdkafka, start_broker
from tests.interop.test_groups_membership import leave_together, until

PARTITIONS = 4
RECORDS = 10
SETTINGS = {
    "group.initial.rebalance.delay.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
}
Join = Callable[..., Living]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir = tmp_path_factory.mktemp("consumer-groups") / "data"
    with start_broker(data_dir, SETTINGS) as broker:
        yield broker.address


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(address: str) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    make_topic(address, name)
    return name


def make_topic(address: str, name: str) -> None:
    client = Librdkafka(address)
    client.create_topic(name, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        client.produce(name, [Record(b"v")] * RECORDS, partition=partition)


@pytest.fixture
def join(address: str, topic: str, group: str) -> Iterator[Join]:
    members: list[Living] = []

    def joined(kind: type[Member] = ConsumerProtocolMember, **settings: Any) -> Living:
        members.append(Living(kind, address, group, settings.pop("topic", topic), **settings))
        return members[-1]

    yield joined
    leave_together(members)


def share(*members: Living) -> Callable[[], bool]:
    """Whether all partitions have one owner, and everyone some."""

    def is_shared() -> bool:
        owned = [member.owned for member in members]
        places = sorted(each for own in owned for each in own)
        return all(owned) and places == list(range(PARTITIONS))

    return is_shared


def type_and_state(client: Client, group: str) -> tuple[str, str]:
    (found,) = [each for each in client.list_groups() if each.group_id == group]
    return found.type, found.state


def test_members_share_read_commit_and_leave(join: Join, address: str, topic: str) -> None:
    first = join()
    until("all is read", lambda: len(first.read) == PARTITIONS * RECORDS)
    first.commit(dict.fromkeys(range(PARTITIONS), RECORDS), "where I was")
    second = join()
    until("both share", share(first, second))
    assert second.committed(2) == (RECORDS, "where I was")
    first.close()
    until("the second has all", share(second))
    Librdkafka(address).produce(topic, [Record(b"new")] * 3, partition=1)
    until("what is new is read", lambda: len(second.read) == 3)
    assert second.read == {(1, RECORDS), (1, RECORDS + 1), (1, RECORDS + 2)}


def test_expression_matches_topics_that_are_created_later(
    join: Join, address: str, topic: str
) -> None:
    member = join(topic=f"^{topic}-.*")
    make_topic(address, f"{topic}-one")
    until("one is read", lambda: len(member.read) == PARTITIONS * RECORDS)
    Librdkafka(address).create_topic(f"{topic}-two", partitions=PARTITIONS + 3)
    until("the other is found", lambda: PARTITIONS + 2 in member.owned)


def test_new_partitions_are_read(join: Join, address: str, topic: str) -> None:
    member = join()
    until("it has all", share(member))
    with connect(**of_headrace(address)) as client:
        client.create_partitions(topic, PARTITIONS + 1)
    until("it has one more", lambda: PARTITIONS in member.owned)


def test_a_static_member_that_restarts_keeps_its_partitions(join: Join) -> None:
    one, two = (join(**{"group.instance.id": name}) for name in ("one", "two"))
    until("both share", share(one, two))
    owned = two.owned, one.owned
    two.close()
    again = join(**{"group.instance.id": "two"})
    until("it is back", lambda: bool(again.owned))
    assert (again.owned, one.owned) == owned


def test_member_continues_after_the_broker_was_killed(tmp_path: Path, group: str) -> None:
    with start_broker(tmp_path / "data", SETTINGS) as broker:
        make_topic(broker.address, "t")
        with closing(Living(ConsumerProtocolMember, broker.address, group, "t")) as member:
            until("all is read", lambda: len(member.read) == PARTITIONS * RECORDS)
            member.commit({0: RECORDS})
            broker.kill()
            broker.restart()
            Librdkafka(broker.address).produce("t", [Record(b"new")], partition=0)
            until("what is new is read", lambda: (0, RECORDS) in member.read)
            found = member.committed(0)
            assert found is not None
            assert found[0] == RECORDS
            until("it is a member again", share(member))
            member.commit({0: RECORDS + 1})


@pytest.mark.parametrize("kind", [LibrdkafkaMember, AiokafkaMember, KafkaPythonMember])
def test_group_is_converted_to_the_consumer_protocol_and_back_while_it_reads(
    kind: type[Member], join: Join, address: str, group: str
) -> None:
    old = join(kind)
    until("the classic member has all", share(old))
    with connect(**of_headrace(address)) as client:
        assert type_and_state(client, group) == ("classic", "Stable")
        new = join()
        until("both share", share(old, new))
        until("it is settled", lambda: type_and_state(client, group) == ("consumer", "Stable"))
        more = join(kind)
        until("three share", share(old, new, more))
        old.close()
        until("two share", share(new, more))
        new.close()
        until("the classic member has all again", share(more))
        until("it is classic", lambda: type_and_state(client, group) == ("classic", "Stable"))


def test_administrators_describe_groups_and_set_their_timeouts(
    join: Join, address: str, topic: str, group: str
) -> None:
    member = join()
    until("it has all", share(member))
    admin: Any = AdminClient(of_librdkafka(address))
    described = admin.describe_consumer_groups([group])[group].result(20)
    assert (described.state.name, described.type.name) == ("STABLE", "CONSUMER")
    (seen,) = described.members
    assert {each.partition for each in seen.assignment.topic_partitions} == set(range(PARTITIONS))
    assert {each.topic for each in seen.target_assignment.topic_partitions} == {topic}
    entry = ConfigEntry(
        "consumer.heartbeat.interval.ms", "300", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(20)
    (told,) = admin.describe_configs([ConfigResource(ResourceType.GROUP, group)]).values()
    found = told.result(20)["consumer.heartbeat.interval.ms"]
    assert (found.value, found.is_default) == ("300", False)
