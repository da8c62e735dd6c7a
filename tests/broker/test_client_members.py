"""The client library as a member of groups, in both of its shells and by every assignor."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace.client import (
    Client,
    CommitFailed,
    GroupListing,
    GroupOffset,
    RequestFailed,
    TopicPartition,
    aio,
    connect,
)
from headrace.testing import RunningBroker
from tests.broker.raw import eventually

PARTITIONS = 4
RECORDS = 40
WAYS: list[dict[str, Any]] = [
    {"assignors": ("range",)},
    {"assignors": ("roundrobin",)},
    {"assignors": ("cooperative-sticky",)},
    {"protocol": "consumer"},
]
QUICK: dict[str, Any] = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6_000}


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One that does not wait for more members."""
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.heartbeat.interval.ms": "50",
        "group.consumer.min.heartbeat.interval.ms": "50",
    }
    directory = tmp_path_factory.mktemp("members") / "data"
    with RunningBroker.start(directory, settings=settings) as broker:
        yield broker


@pytest.fixture
def client(quick_broker: RunningBroker) -> Iterator[Client]:
    with connect(quick_broker.address) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> str:
    name = f"members-{uuid4().hex[:8]}"
    client.create_topic(name, partitions=PARTITIONS)
    fill(client, name)
    return name


def fill(client: Client, topic: str) -> None:
    with client.producer() as producer:
        for number in range(RECORDS):
            producer.send(topic, str(number), partition=number % PARTITIONS)


def committed(client: Client, group: str) -> dict[int, int]:
    return {place.partition: found.offset for place, found in client.group_offsets(group).items()}


def listed(client: Client, group: str) -> list[GroupListing]:
    return [found for found in client.list_groups() if found.group_id == group]


def sizes(client: Client, group: str) -> list[int]:
    """The number of partitions of each member of a group, if the group exists."""
    if not listed(client, group):
        return []
    return [len(member.partitions) for member in client.describe_group(group).members]


class Reader:
    """A member that reads until the test stops it."""

    def __init__(self, client: aio.Client, group: str, topic: str, settings: Any) -> None:
        self.read: Counter[bytes | None] = Counter()
        self.told: list[str] = []
        self.member = client.group_consumer(
            group,
            topic,
            on_assigned=lambda places: self.told.append(f"+{len(places)}"),
            on_revoked=self.revoked,
            **QUICK | settings,
        )
        self.task = asyncio.create_task(self.run())

    async def revoked(self, places: tuple[TopicPartition, ...]) -> None:
        self.told.append(f"-{len(places)}")

    async def run(self) -> None:
        async with self.member:
            async for record in self.member:
                self.read[record.value] += 1

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def until(what: str, is_so: Any) -> None:
    """Let the members run on this loop until something is so."""
    await asyncio.to_thread(eventually, what, is_so)


@pytest.mark.parametrize(
    "settings", WAYS, ids=lambda way: "-".join(way.get("assignors", ("consumer",)))
)
def test_members_share_and_hand_over_partitions_without_duplicates(
    quick_broker: RunningBroker, client: Client, topic: str, settings: dict[str, Any]
) -> None:
    group = f"share-{uuid4().hex[:8]}"

    async def live() -> tuple[Reader, Reader]:
        async with aio.connect(quick_broker.address) as client:
            one = Reader(client, group, topic, settings)
            await until("one reads all", lambda: one.read.total() == RECORDS)
            two = Reader(client, group, topic, settings)
            await until(
                "they share", lambda: [len(m.member.partitions) for m in (one, two)] == [2, 2]
            )
            async with client.producer() as producer:
                for number in range(RECORDS):
                    await producer.send(topic, f"more {number}", partition=number % PARTITIONS)
            await until("all is read", lambda: (one.read + two.read).total() == 2 * RECORDS)
            await one.stop()
            await until("one is left", lambda: len(two.member.partitions) == PARTITIONS)
            await client.produce(topic, "last")
            await until("it goes on", lambda: two.read[b"last"] == 1)
            await two.stop()
            return one, two

    one, two = asyncio.run(live())
    together = one.read + two.read
    assert (len(together), together.total()) == (2 * RECORDS + 1, 2 * RECORDS + 1)
    assert two.read.total() == RECORDS // 2 + 1
    is_eager = settings.get("assignors") in (("range",), ("roundrobin",))
    assert one.told[:2] == ["+4", "-4" if is_eager else "-2"]
    assert sum(committed(client, group).values()) == 2 * RECORDS + 1
    assert [(found.state, found.type) for found in listed(client, group)] == [
        ("Empty", settings.get("protocol", "classic"))
    ]


def test_read_records_are_committed_and_failed_ones_are_not(client: Client, topic: str) -> None:
    group = f"commit-{uuid4().hex[:8]}"
    read = []
    with client.group_consumer(group, topic, **QUICK) as member:
        for record in member:
            read.append(record)
            if len(read) == 7:
                break
    assert sum(committed(client, group).values()) == 7

    def fail_at_the_tenth() -> None:
        with client.group_consumer(group, topic, **QUICK) as member:
            for record in member:
                read.append(record)
                if len(read) == 10:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_the_tenth()
    assert sum(committed(client, group).values()) == 9
    places = {(record.partition, record.offset) for record in read}
    assert len(places) == 10


def test_program_commits_explicitly_and_seeks(client: Client, topic: str) -> None:
    group = f"manual-{uuid4().hex[:8]}"
    place = TopicPartition(topic, 1)
    with client.group_consumer(group, topic, auto_commit=False, **QUICK) as member:
        while not member.poll(1_000):
            pass
        member.commit({place: GroupOffset(3, metadata="note")})
        assert client.group_offsets(group)[place].metadata == "note"
        member.seek(place, 8)
        assert member.position(place) == 8
        with pytest.raises(CommitFailed):
            member.commit({TopicPartition(topic, 99): 1})
    assert committed(client, group) == {1: 3}


def test_restarted_static_member_keeps_its_partitions_and_fences_the_former_one(
    client: Client, topic: str
) -> None:
    group = f"static-{uuid4().hex[:8]}"
    former = client.group_consumer(group, topic, instance_id="i", **QUICK)
    assert former.poll(30_000)
    generation = former.generation_id
    later = client.group_consumer(group, topic, instance_id="i", **QUICK)
    assert later.poll(30_000)
    assert later.generation_id == generation
    with pytest.raises(RequestFailed, match="FENCED_INSTANCE_ID"):
        former.poll(30_000)
    former.close()
    later.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consume_with_a_group_commits_and_leaves_on_a_signal(
    quick_broker: RunningBroker, client: Client, topic: str, protocol: str
) -> None:
    group = f"command-{uuid4().hex[:8]}"
    command = [sys.executable, "-m", "headrace.cli.main", "consume", topic, "--group", group]
    command += ["--group-protocol", protocol]
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": quick_broker.address}
    done = subprocess.run([*command, "--max", "15"], env=environment, capture_output=True)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 15), done.stderr
    assert sum(committed(client, group).values()) == 15
    with subprocess.Popen([*command, "--json"], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(RECORDS - 15):
            assert process.stdout.readline().startswith(b"{")
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 130
    assert [found.state for found in listed(client, group)] == ["Empty"]
    assert sum(committed(client, group).values()) == RECORDS


def test_pattern_matches_topics_that_are_created_later(client: Client, topic: str) -> None:
    group = f"pattern-{uuid4().hex[:8]}"
    with client.group_consumer(group, pattern=f"{topic}.*", protocol="consumer") as member:
        while len(member.partitions) < PARTITIONS:
            member.poll(100)
        client.create_topic(f"{topic}-more", partitions=2)
        # A position is committed only once it is known, some time after the assignment.
        while len(client.group_offsets(group)) < PARTITIONS + 2:
            member.poll(100)
            member.commit()
    assert {place.topic for place in client.group_offsets(group)} == {topic, f"{topic}-more"}


def test_two_commands_share_a_topic(
    quick_broker: RunningBroker, client: Client, topic: str, tmp_path: Path
) -> None:
    group = f"commands-{uuid4().hex[:8]}"
    command = [sys.executable, "-m", "headrace.cli.main", "consume", topic, "--group", group]
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": quick_broker.address}
    outputs = [tmp_path / "one", tmp_path / "two"]
    running = []
    for output in outputs:
        with output.open("wb") as file:
            running.append(subprocess.Popen(command, env=environment, stdout=file))

    def read() -> set[bytes]:
        return {line for output in outputs for line in output.read_bytes().split()}

    try:
        eventually("each has its half", lambda: sizes(client, group) == [2, 2])
        eventually("all is read", lambda: len(read()) == RECORDS)
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        ended = [process.wait() for process in running]
    assert ended == [143, 143]
    assert client.describe_group(group).state == "Empty"
    assert len(read()) == RECORDS
