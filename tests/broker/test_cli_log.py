"""`headrace log` with valid and damaged files of a stopped broker."""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from headrace.cli import main as cli
from headrace.client import connect
from headrace.record.build import NewRecord, build_batch
from headrace.testing import RunningBroker

Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that has stopped: several segments, every codec."""
    directory = tmp_path_factory.mktemp("log") / "data"
    random = Random(7)
    settings = {"log.index.interval.bytes": "0"}
    with RunningBroker.start(directory, settings=settings) as broker:
        with connect(broker.address) as client:
            client.create_topic("t", partitions=2, configs={"segment.bytes": "1048576"})
            for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
                with client.producer(compression=codec, batch_bytes_max=30_000) as producer:
                    for number in range(200):
                        value = f"{codec} {number} {random.randbytes(1_500).hex()}"
                        producer.send("t", value, key="k", partition=0)
        broker.stop()
        keep = tmp_path_factory.mktemp("kept") / "data"
        _copy(directory, keep)
    return keep


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    _copy(written, tmp_path / "data")
    return tmp_path / "data"


def logs(data: Path) -> list[Path]:
    return sorted((data / "t-0").glob("*.log"))


def test_valid_files_are_ok(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(logs(data)) > 1
    assert cli.main(["log", "check", str(data)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"t-0: ok; {len(logs(data))} segments, ")
    assert "1,000 records" in first
    assert second.startswith("t-1: ok; ")


def test_one_partition_can_be_checked_alone(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log", "check", str(data / "t-0"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["t-0"]["records"] == 1_000
    assert report["t-0"]["log_end_offset"] == 1_000


def test_directory_with_logs_of_other_programs_is_not_a_partition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server.log").touch()
    assert cli.main(["log", "check", str(tmp_path)]) == 1
    assert "contains no partitions" in capsys.readouterr().err


def test_error_of_the_output_is_not_reported_as_an_error_of_the_file(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(["log", "dump", str(logs(data)[0])]) == 1
    assert "Cannot write the output: No space left" in capsys.readouterr().err


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def flip_a_record(data: Path) -> None:
    flip(logs(data)[0], 100)


def flip_a_crc(data: Path) -> None:
    flip(logs(data)[1], 17)


def cut_the_tail(data: Path) -> None:
    path = logs(data)[-1]
    path.write_bytes(path.read_bytes()[:-3])


def cut_in_the_middle(data: Path) -> None:
    path = logs(data)[0]
    path.write_bytes(path.read_bytes()[:-3])


def misplace_an_index_entry(data: Path) -> None:
    path = logs(data)[0].with_suffix(".index")
    content = bytearray(path.read_bytes())
    struct.pack_into(">i", content, 12, struct.unpack_from(">i", content, 12)[0] + 1)
    path.write_bytes(content)


def overwrite_the_last_index(data: Path) -> None:
    path = logs(data)[-1].with_suffix(".index")
    path.write_bytes(b"\xff" * path.stat().st_size)


def flip_a_bit_of_the_first_index(data: Path) -> None:
    flip_a_bit(logs(data)[0].with_suffix(".index"))


def flip_a_bit_of_the_last_index(data: Path) -> None:
    flip_a_bit(logs(data)[-1].with_suffix(".index"))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


def backdate_the_time_index(data: Path) -> None:
    path = logs(data)[0].with_suffix(".timeindex")
    content = bytearray(path.read_bytes())
    struct.pack_into(">q", content, len(content) - 12, 5)
    path.write_bytes(content)


def garble_a_snapshot(data: Path) -> None:
    flip(sorted((data / "t-0").glob("*.snapshot"))[0], 8)


def lie_about_epochs(data: Path) -> None:
    (data / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 10\n")


def swap_two_segments(data: Path) -> None:
    first, second = logs(data)[:2]
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def put_a_directory_in_place_of_the_checkpoint(data: Path) -> None:
    path = data / "t-0" / "headrace-checkpoint"
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        put_a_directory_in_place_of_the_checkpoint,
        flip_a_record,
        flip_a_crc,
        cut_the_tail,
        cut_in_the_middle,
        misplace_an_index_entry,
        overwrite_the_last_index,
        flip_a_bit_of_the_first_index,
        flip_a_bit_of_the_last_index,
        backdate_the_time_index,
        garble_a_snapshot,
        lie_about_epochs,
        swap_two_segments,
    ],
    ids=lambda damage: damage.__name__,
)
def test_damage_is_found(data: Path, damage: Damage, capsys: pytest.CaptureFixture[str]) -> None:
    damage(data)
    assert cli.main(["log", "check", str(data)]) == 1
    out = capsys.readouterr().out
    assert "t-0: ok" not in out
    assert "t-1: ok" in out


def test_a_log_that_stays_offline_is_not_reported_as_one_that_recovery_cuts(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_the_tail(data)
    assert cli.main(["log", "check", str(data)]) == 1
    out = capsys.readouterr().out
    assert "; the log stays offline" in out
    assert "recovery would cut" not in out
    (data / "t-0" / "headrace-checkpoint").unlink()
    assert cli.main(["log", "check", str(data)]) == 1
    out = capsys.readouterr().out
    assert "stays offline" not in out
    assert "; recovery would cut the last " in out


def test_a_partition_without_segments_is_reported(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in logs(data):
        path.unlink()
    for directory in (data, data / "t-0"):
        assert cli.main(["log", "check", str(directory)]) == 1
        out = capsys.readouterr().out
        assert "t-0: ok" not in out
        assert "*.log: no segment exists: its files were removed" in out
    # The broker has recorded the partition.
    (data / "t-0" / "headrace-checkpoint").unlink()
    assert cli.main(["log", "check", str(data)]) == 1


def test_a_partition_whose_creation_was_interrupted_is_no_problem(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data / "t-1", data / "new-0")
    for path in (data / "new-0").iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    assert cli.main(["log", "check", str(data)]) == 0
    assert "new-0: ok; 0 segments" in capsys.readouterr().out


def test_a_missing_partition_directory_is_reported(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(data / "t-1")
    assert cli.main(["log", "check", str(data)]) == 1
    out = capsys.readouterr().out
    assert "t-0: ok" in out
    assert f"{data / 't-1'}: the directory is missing" in out


def test_all_brokers_of_a_cluster_are_checked(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for broker in ("broker-1", "broker-2"):
        _copy(data, tmp_path / "cluster" / broker)
    flip_a_crc(tmp_path / "cluster" / "broker-2")
    assert cli.main(["log", "check", str(tmp_path / "cluster")]) == 1
    heads = [line.split(";")[0] for line in capsys.readouterr().out.splitlines() if "; " in line]
    assert heads[:2] == ["broker-1/t-0: ok", "broker-1/t-1: ok"]
    assert heads[2].startswith("broker-2/t-0: ")
    assert "problem" in heads[2]


def test_missing_index_is_not_a_problem(data: Path) -> None:
    for path in (data / "t-0").glob("*index"):
        path.unlink()
    assert cli.main(["log", "check", str(data)]) == 0


def test_a_directory_without_partitions_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["log", "check", str(tmp_path)]) == 1
    assert "contains no partitions" in capsys.readouterr().err
    assert cli.main(["log", "check", str(tmp_path / "nothing")]) == 1
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage", [overwrite_the_last_index, flip_a_bit_of_the_first_index, misplace_an_index_entry]
)
def test_damaged_index_is_reported_as_one_that_the_broker_rebuilds(
    data: Path, damage: Damage, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(data)
    assert cli.main(["log", "check", str(data)]) == 1
    assert "; the broker rebuilds it in memory" in capsys.readouterr().out
    with RunningBroker.start(data) as broker:
        with connect(broker.address) as client:
            records = list(client.consume("t", partitions=[0], start=0, until="end"))
        broker.stop()
    assert len(records) == 1_000


def test_directories_with_names_like_partitions_are_not_partitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dbus-1" / "system.d").mkdir(parents=True)
    assert cli.main(["log", "check", str(tmp_path)]) == 1
    assert "contains no partitions" in capsys.readouterr().err


def test_a_log_is_dumped_batch_by_batch(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log", "dump", str(logs(data)[0])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("batch 0..")
    assert 'key "k" value "none 0 ' in lines[1]
    assert cli.main(["log", "dump", "--batches", str(logs(data)[0])]) == 0
    batches = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("batch ")] == batches


def test_a_log_is_dumped_as_json(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offsets: list[int] = []
    for path in logs(data):
        assert cli.main(["log", "dump", "--json", str(path)]) == 0
        for line in capsys.readouterr().out.splitlines():
            offsets += [record["offset"] for record in json.loads(line)["records"]]
    assert offsets == list(range(1_000))


def test_indexes_and_snapshots_are_dumped(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stem = logs(data)[0]
    for suffix, names in (
        (".index", {"offset", "position"}),
        (".timeindex", {"timestamp", "offset"}),
    ):
        assert cli.main(["log", "dump", "--json", str(stem.with_suffix(suffix))]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert lines
        assert set(lines[0]) == names
    snapshot = sorted((data / "t-0").glob("*.snapshot"))[-1]
    assert cli.main(["log", "dump", str(snapshot)]) == 0
    assert "producer_id" in capsys.readouterr().out


def test_a_damaged_log_is_dumped_up_to_the_damage(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_the_tail(data)
    assert cli.main(["log", "dump", str(logs(data)[-1])]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("batch ")
    assert "no valid batch: a batch has " in shown.err


def test_unknown_kind_of_file_is_rejected(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log", "dump", str(data / "meta.properties")]) == 2
    assert "meta.properties: it is not one of" in capsys.readouterr().err


def test_unprintable_characters_are_escaped(tmp_path: Path) -> None:
    mill = tmp_path / "Mühle"
    mill.mkdir()
    log = mill / f"{0:020d}.log"
    log.write_bytes(build_batch([NewRecord(b"Rad", "dreht für dich".encode(), 1000)]))

    def told(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        command = [sys.executable, "-m", "headrace", "log", *arguments]
        return subprocess.check_output(command, env=environment, text=True, timeout=40)

    assert r"dreht f\xfcr dich" in told("dump", str(log))
    assert r"M\xfchle: ok" in told("check", str(mill))
    assert list(json.loads(told("check", str(mill), "--json"))) == ["Mühle"]


def test_check_reports_a_running_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "data"
    with RunningBroker.start(directory) as broker:
        with connect(broker.address) as client:
            client.produce("t", "3 apples")
        for checked in (directory, directory / "t-0"):
            cli.main(["log", "check", str(checked)])
            assert f"the broker of {directory} is running: pid " in capsys.readouterr().err
        broker.stop()
    assert cli.main(["log", "check", str(directory)]) == 0
    assert capsys.readouterr().err == ""
