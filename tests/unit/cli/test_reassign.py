"""Plan files, and the progress of reassignments."""

import json
from pathlib import Path

import pytest

from headrace.cli.failure import Failure
from headrace.cli.main import main
from headrace.cli.reassign import read_plan
from headrace.cli.reassignment_progress import Placement, bytes_to_move, progress_text, sizes
from headrace.cli.reassignment_throttle import lift_throttle, throttled_replicas
from headrace.client import Reassignment, TimedOut, TopicPartition
from headrace.client.core.values import (
    ClusterInfo,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    LogDir,
    LogDirPartition,
    Node,
)

ROW = {"topic": "t", "partition": 1, "replicas": [2, 1]}


def plan_of(directory: Path, *rows: object) -> Path:
    path = directory / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return path


def test_a_plan_of_kafkas_tool_is_read(tmp_path: Path) -> None:
    row = {**ROW, "log_dirs": ["any", "any"]}
    assert read_plan(plan_of(tmp_path, row)) == {TopicPartition("t", 1): (2, 1)}


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([ROW, ROW], "twice"),
        ([{**ROW, "replicas": [1, 1]}], "a broker twice"),
        ([{**ROW, "replicas": []}], "must have topic"),
        ([{**ROW, "replicas": ["1"]}], "must have topic"),
        ([{**ROW, "partition": "x"}], "must have topic"),
        (["x"], "must have topic"),
    ],
)
def test_invalid_plan_is_rejected(tmp_path: Path, rows: list[object], told: str) -> None:
    with pytest.raises(Failure, match=told):
        read_plan(plan_of(tmp_path, *rows))


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 2, "partitions": []}', '{"version": 1}', "\x80"]
)
def test_file_that_is_not_a_plan_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(Failure, match=r"is not (JSON|a plan)"):
        read_plan(path)
    path.unlink()
    with pytest.raises(Failure, match="Cannot read"):
        read_plan(path)


def test_progress_shows_bytes_rate_and_remaining_time() -> None:
    line = progress_text(reassigned_count=3, count=10, done=250_000_000, total=10**9, rate=5e6)
    assert line == (
        "██████░░░░░░░░░░░░░░░░░░  25%  3 of 10 partitions, "
        "250.0 MB of 1.0 GB, 5.0 MB/s, 2 min left"
    )
    assert "left" not in progress_text(0, 10, 0, 10**9, 0.0)
    assert "50%" in progress_text(1, 2, 0, 0, 0.0)


class ClientWithOneSilent:
    """Broker 2 does not respond. Its replica is a follower of broker 1."""

    def describe_cluster(self) -> ClusterInfo:
        return ClusterInfo("id", 1, (Node(1, "a", 9092), Node(2, "b", 9092), Node(3, "c", 9092)))

    def describe_log_dirs(self, node_id: int) -> list[LogDir]:
        if node_id == 2:
            raise TimedOut("no answer")
        held = (LogDirPartition("t", 0, 700, 0),) if node_id == 1 else ()
        return [LogDir(node_id, "/data", held)]


def test_bytes_are_counted_although_a_broker_is_silent() -> None:
    known = sizes(ClientWithOneSilent())  # type: ignore[arg-type]
    where = TopicPartition("t", 0)
    assert bytes_to_move({where: (2, 1)}, {where: (3, 1)}, known) == 700
    assert bytes_to_move({where: (2, 1)}, {where: (1, 2)}, known) == 0


def test_throttle_lists_source_and_target_replicas() -> None:
    parts = [TopicPartition("t", index) for index in range(4)]
    placement = Placement(
        {parts[0]: (1, 2), parts[1]: (1, 2, 3), parts[2]: (2, 1), parts[3]: (1, 2)},
        {parts[1]: Reassignment((1, 2, 3), adding=(3,), removing=(1,))},
    )
    lists, nodes = throttled_replicas(
        placement, {parts[0]: (2, 4), parts[2]: (1, 2), parts[3]: (1,)}
    )
    assert lists == {"t": (["0:1", "0:2", "1:1", "1:2"], ["0:4", "1:3"])}
    assert nodes == {1, 2, 3, 4}


def test_throttle_of_many_partitions_lists_all_replicas_of_the_topic() -> None:
    placement = Placement({TopicPartition("t", index): (1, 2) for index in range(6000)}, {})
    lists, _ = throttled_replicas(placement, dict.fromkeys(placement.replicas, (2, 3)))
    assert lists == {"t": (["*"], ["*"])}


@pytest.mark.parametrize("text", ["0", "-1", "1e6", "fast"])
def test_invalid_rate_of_a_throttle_is_rejected(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["reassign", "execute", "plan.json", "--throttle", text])
    assert "number of bytes" in capsys.readouterr().err


class ClientWithThrottle:
    """Broker 1 and the topic t have limits, with other settings; broker 2 has none."""

    def __init__(self) -> None:
        self.settings = {
            ConfigResource("topic", "t"): {
                "leader.replication.throttled.replicas": "0:1",
                "retention.ms": "1",
            },
            ConfigResource("broker", "1"): {
                "leader.replication.throttled.rate": "1000",
                "follower.replication.throttled.rate": "1000",
            },
            ConfigResource("broker", "2"): {},
        }

    def describe_cluster(self) -> ClusterInfo:
        return ClusterInfo("id", 1, (Node(1, "a", 9092), Node(2, "b", 9092)))

    def describe_configs(
        self, resource: ConfigResource, names: list[str]
    ) -> dict[str, ConfigEntry]:
        own = self.settings[resource]
        return {
            name: ConfigEntry(
                name, own.get(name), resource.kind if name in own else "default", False, False
            )
            for name in names
        }

    def alter_configs(self, resource: ConfigResource, changes: list[ConfigChange]) -> None:
        for change in changes:
            assert change.operation == "unset"
            del self.settings[resource][change.name]


def test_removal_of_a_throttle_keeps_other_settings() -> None:
    client = ClientWithThrottle()
    assert lift_throttle(client, ["t"])  # type: ignore[arg-type]
    assert [*client.settings.values()] == [{"retention.ms": "1"}, {}, {}]
    assert not lift_throttle(client, ["t"])  # type: ignore[arg-type]
