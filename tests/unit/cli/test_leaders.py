"""`headrace leaders elect`: unknown partitions, confirmations, and the output."""

import contextlib
import json
from collections.abc import Iterator
from uuid import UUID

import pytest

from headrace.cli import leaders
from headrace.cli.main import main
from headrace.client.core.values import LogEnd, PartitionInfo, ReplicaInfo, TopicInfo
from headrace.model.topics import TopicPartition

MILL = TopicPartition("mill", 0)


class FakeClient:
    """Broker 1 has an offline log of a partition, 2 is missing, 3 has a shorter log."""

    def __init__(self) -> None:
        self.elected: list[tuple[list[TopicPartition] | None, bool]] = []

    def describe_topic(self, name: str) -> TopicInfo:
        return TopicInfo(name, UUID(int=1), (PartitionInfo(0, -1, 0, (1, 2, 3), (1, 2)),))

    def describe_replicas(self, _: list[str]) -> dict[TopicPartition, ReplicaInfo]:
        return {MILL: ReplicaInfo(-1, (1, 2, 3), (1, 2), (), (), (2,))}

    def log_end_offsets(
        self, replicas: dict[TopicPartition, list[int]]
    ) -> dict[TopicPartition, dict[int, LogEnd]]:
        assert replicas == {MILL: [1, 3]}
        return {MILL: {1: LogEnd(-1, -1, is_offline=True), 3: LogEnd(4, 77)}}

    def elect_leaders(
        self, chosen: list[TopicPartition] | None, *, unclean: bool
    ) -> dict[TopicPartition, None]:
        self.elected.append((chosen, unclean))
        return dict.fromkeys(chosen or [])


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()

    @contextlib.contextmanager
    def connected(_: object) -> Iterator[FakeClient]:
        yield fake

    monkeypatch.setattr(leaders, "connected", connected)
    return fake


@pytest.mark.parametrize("more", [(), ("--unclean", "--yes")])
def test_an_unknown_partition_is_an_error(
    client: FakeClient, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    assert main(["leaders", "elect", "--topic", "mill", "--partition", "99", *more]) == 1
    assert ": topic mill has partitions 0 to 0" in capsys.readouterr().err.lower()
    assert client.elected == []


def test_a_confirmation_without_an_unclean_election_is_an_error(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["leaders", "elect", "--topic", "mill", "--yes"]) == 2
    assert "--yes requires --unclean" in capsys.readouterr().err
    assert client.elected == []


def test_the_table_is_shown_before_a_confirmation_and_the_output_stays_json(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    elect = ["leaders", "elect", "--topic", "mill", "--unclean", "--json"]
    assert main(elect) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    rows = [line.split(maxsplit=5) for line in shown.err.splitlines() if line.startswith("mill")]
    assert [(row[2], row[3], row[4], row[5]) for row in rows] == [
        ("1", "-", "-", "OFFLINE log, was in sync"),
        ("2", "-", "-", "MISSING, was in sync"),
        ("3", "4", "77", "was not in sync"),
    ]
    assert client.elected == []
    assert main([*elect, "--yes"]) == 0
    assert json.loads(capsys.readouterr().out)["elected"] == [{"topic": "mill", "partition": 0}]
    assert client.elected == [([MILL], True)]
