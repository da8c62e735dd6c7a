"""`headrace groups` against a live broker: lag that people see, and offsets that they set."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from headrace.cli import main as cli
from headrace.client import Client, GroupOffset, TopicPartition, connect
from headrace.testing import RunningBroker
from tests.broker.group_member import RawMember, make_offsets_topic
from tests.broker.raw import RawConnection

RECORDS = 10
MINUTE_MS = 60_000


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Groups = Callable[..., Ended]


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One that does not wait for more members."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with RunningBroker.start(tmp_path_factory.mktemp("cli") / "data", settings=settings) as broker:
        yield broker


@pytest.fixture
def groups(
    quick_broker: RunningBroker,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Groups:
    """Runs `headrace groups` in this process."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", quick_broker.address)

    def run(*arguments: str) -> Ended:
        capfd.readouterr()
        try:
            code = cli.main(["groups", *arguments])
        except SystemExit as ended:
            code = int(str(ended.code))
        sys.stdout.flush()
        return Ended(code, *capfd.readouterr())

    return run


@pytest.fixture
def client(quick_broker: RunningBroker) -> Iterator[Client]:
    with connect(quick_broker.address) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> str:
    """Two partitions, each with a record a minute, the last one a minute ago."""
    name = f"cli-groups-{uuid4().hex[:8]}"
    client.create_topic(name, partitions=2)
    now_ms = int(time.time() * 1000)
    for partition in range(2):
        for number in range(RECORDS):
            timestamp_ms = now_ms - (RECORDS - number) * MINUTE_MS
            client.produce(name, "v", partition=partition, timestamp_ms=timestamp_ms)
    return name


@pytest.fixture
def group(client: Client, topic: str) -> str:
    """A group without members that has read some of one partition and all of the other."""
    name = f"group-{uuid4().hex[:8]}"
    offsets = {TopicPartition(topic, 0): GroupOffset(4), TopicPartition(topic, 1): GroupOffset(10)}
    client.commit_group_offsets(name, offsets)
    return name


@pytest.fixture
def member(quick_broker: RunningBroker) -> Iterator[RawMember]:
    with RawConnection(quick_broker.port) as wire:
        make_offsets_topic(wire)
    with RawMember(quick_broker.port, f"living-{uuid4().hex[:8]}") as member:
        yield member


def committed(client: Client, group: str) -> dict[int, int]:
    return {place.partition: at.offset for place, at in client.group_offsets(group).items()}


def test_groups_are_listed_by_name_and_state(groups: Groups, group: str) -> None:
    assert group in groups("list").lines
    assert group in groups("list", "--state", "empty").lines
    assert group not in groups("list", "--state", "Stable").lines
    (found,) = [each for each in groups("list", "--json").json if each["group"] == group]
    assert found == {"group": group, "state": "Empty", "type": "classic"}


def test_describe_shows_lag_in_records_and_in_time(groups: Groups, group: str, topic: str) -> None:
    (found,) = groups("describe", group, "--json").json
    assert (found["state"], found["members"]) == ("Empty", 0)
    behind, done = found["partitions"]
    assert (behind["committed_offset"], behind["end_offset"], behind["lag"]) == (4, 10, 6)
    assert 6 * MINUTE_MS <= behind["lag_ms"] < 7 * MINUTE_MS
    assert (done["lag"], done["lag_ms"], done["member"]) == (0, 0, None)
    table = groups("describe", group).lines
    assert table[0] == f"{group}: Empty, 0 members"
    assert re.search(rf"{topic} +0 +4 +10 +6 +6 min( \d+ s)? +-", table[2])


def test_lag_of_an_empty_partition_is_0(groups: Groups, client: Client) -> None:
    name, reader = f"empty-{uuid4().hex[:8]}", f"reader-{uuid4().hex[:8]}"
    client.create_topic(name)
    client.commit_group_offsets(reader, {TopicPartition(name, 0): GroupOffset(0)})
    (found,) = groups("describe", reader, "--json").json
    assert (found["partitions"][0]["lag"], found["partitions"][0]["lag_ms"]) == (0, 0)


def test_members_show_their_partitions(groups: Groups, member: RawMember, topic: str) -> None:
    member.join()
    name = topic.encode()
    owned = b"\0\0\0\0\0\1" + len(name).to_bytes(2, "big") + name
    owned += b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\1" + b"\xff\xff\xff\xff"
    member.sync({member.member_id: owned})
    (found,) = groups("members", member.group, "--json").json
    assert found["member"] == member.member_id
    assert found["host"] == "127.0.0.1"
    assert found["partitions"] == [{"topic": topic, "partition": index} for index in range(2)]
    assert f"{topic}:0,1" in groups("members", member.group).lines[1]
    (described,) = groups("describe", member.group, "--json").json
    assert [row["member"] for row in described["partitions"]] == [member.member_id] * 2
    assert [row["lag"] for row in described["partitions"]] == [None, None]


def test_group_is_deleted_only_without_members(
    groups: Groups, group: str, member: RawMember
) -> None:
    assert groups("delete", group).out == f"Deleted group {group}.\n"
    assert group not in groups("list").lines
    again = groups("delete", group)
    assert (again.code, again.err) == (1, f"headrace: Unknown group '{group}'.\n")
    member.live()
    refused = groups("delete", member.group)
    assert refused.code == 1
    assert "has members" in refused.err


@pytest.mark.parametrize(
    ("arguments", "offset", "side"),
    [
        (["--to-offset", "7000"], 7000, "above the end"),
        (["--shift-by", "1000"], 1004, "above the end"),
        (["--shift-by", "-1000"], -996, "below the start"),
    ],
)
def test_offsets_outside_a_partition_are_reported(
    groups: Groups, group: str, topic: str, arguments: list[str], offset: int, side: str
) -> None:
    done = groups("reset-offsets", group, *arguments, "--json")
    plan = {row["partition"]: row["new_offset"] for row in done.json["partitions"]}
    line = f"{topic}-0: offset {offset} is {side} of the partition: set to {plan[0]}"
    assert line in done.err.splitlines()
    assert groups("reset-offsets", group, "--to-earliest").err == ""
    assert groups("reset-offsets", group, "--to-offset", "7").err == ""


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: 10, 1: 10}),
        (["--to-offset", "7"], {0: 7, 1: 7}),
        (["--to-offset", "7000"], {0: 10, 1: 10}),
        (["--shift-by", "-3"], {0: 1, 1: 7}),
        (["--shift-by", "3"], {0: 7, 1: 10}),
        (["--by-duration", "270s"], {0: 6, 1: 6}),
        (["--by-duration", "PT4M30S"], {0: 6, 1: 6}),
        (["--by-duration", "10s"], {0: 10, 1: 10}),
    ],
)
def test_offsets_are_reset_to_every_kind_of_position(
    groups: Groups, client: Client, group: str, arguments: list[str], after: dict[int, int]
) -> None:
    plan = groups("reset-offsets", group, *arguments, "--json").json
    assert not plan["executed"]
    assert {row["partition"]: row["new_offset"] for row in plan["partitions"]} == after
    assert committed(client, group) == {0: 4, 1: 10}
    done = groups("reset-offsets", group, *arguments, "--execute", "--json").json
    assert done["executed"]
    assert committed(client, group) == after


def test_plan_states_that_nothing_was_changed(groups: Groups, group: str) -> None:
    lines = groups("reset-offsets", group, "--to-earliest").lines
    assert lines[0].split() == ["topic", "partition", "offset", "new", "offset"]
    assert "no offset was changed" in lines[-1]


def test_offsets_are_reset_to_a_moment(groups: Groups, group: str) -> None:
    moment_ms = int(time.time() * 1000) - 5 * MINUTE_MS - MINUTE_MS // 2
    for text in (
        f"@{moment_ms}",
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment_ms / 1000)),
    ):
        plan = groups("reset-offsets", group, "--to-datetime", text, "--json").json
        assert [row["new_offset"] for row in plan["partitions"]] == [5, 5]


def test_plan_can_be_saved_and_executed(
    groups: Groups, client: Client, group: str, topic: str, tmp_path: Path
) -> None:
    saved = tmp_path / "plan.csv"
    plan = groups("reset-offsets", group, "--topic", f"{topic}:1", "--to-offset", "2", "--csv")
    saved.write_text(plan.out)
    assert plan.out == f"{topic},1,2\n"
    assert groups("reset-offsets", group, "--from-file", str(saved), "--execute").code == 0
    assert committed(client, group) == {0: 4, 1: 2}


def test_reset_sets_offsets_of_a_new_group(groups: Groups, client: Client, topic: str) -> None:
    name = f"new-{uuid4().hex[:8]}"
    assert "Select topics" in groups("reset-offsets", name, "--to-latest").err
    assert groups("reset-offsets", name, "--topic", topic, "--to-latest", "--execute").code == 0
    assert committed(client, name) == {0: 10, 1: 10}


def test_offsets_of_a_group_with_members_are_not_reset(
    groups: Groups, member: RawMember, topic: str
) -> None:
    member.live()
    arguments = ("reset-offsets", member.group, "--topic", topic, "--to-latest", "--execute")
    refused = groups(*arguments)
    assert refused.code == 1
    assert "has members" in refused.err


def test_offsets_are_deleted(groups: Groups, client: Client, group: str, topic: str) -> None:
    deleted = groups("delete-offsets", group, "--topic", f"{topic}:0")
    assert deleted == (0, "Deleted the offsets of 1 partition.\n", "")
    assert committed(client, group) == {1: 10}


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe", "no-such-group"],
        ["members", "no-such-group"],
        ["delete-offsets", "no-such-group", "--topic", "{topic}"],
        ["reset-offsets", "g", "--to-latest", "--topic", "no-such-topic"],
        ["reset-offsets", "g", "--to-latest", "--topic", "{topic}:2"],
        ["reset-offsets", "g", "--shift-by", "1", "--topic", "{topic}"],
        ["reset-offsets", "g", "--from-file", "/no/such/file"],
        ["reset-offsets", "g", "--by-duration", "soon"],
        ["reset-offsets", "g", "--to-datetime", "today"],
        ["reset-offsets", "g"],
    ],
)
def test_impossible_requests_are_explained_in_a_sentence(
    groups: Groups, topic: str, arguments: list[str]
) -> None:
    ended = groups(*(each.format(topic=topic) for each in arguments))
    assert ended.code != 0
    assert ended.out == ""
    assert "Traceback" not in ended.err
    assert ended.err
