"""A partition that lost a synced file: the broker starts, and only this partition is offline."""

import shutil
from pathlib import Path

import pytest

from headrace.cli import main as cli
from headrace.testing import BrokerFailed, RunningBroker
from tests.broker.raw import RawConnection, one_batch, values_of

STORAGE_ERROR = 56
DAMAGED = "damaged"
INTACT = "intact"
COUNT = 6


def fill(connection: RawConnection, topic: str) -> None:
    connection.create_topic(topic, segment_bytes=str(1 << 20))
    for number in range(COUNT):
        sent = connection.produce(topic, one_batch(b"%d" % number + bytes(600_000)))
        assert sent["error_code"] == 0, sent


def test_a_partition_with_a_missing_segment_is_offline_and_others_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with RunningBroker.start(data) as broker:
        with RawConnection(broker.port) as connection:
            for topic in (DAMAGED, INTACT):
                fill(connection, topic)
        broker.stop()
        missing = data / f"{DAMAGED}-0" / f"{2:020d}.log"
        content = missing.read_bytes()
        missing.unlink()
        before = sorted(path.name for path in missing.parent.iterdir())
        broker.restart()
        with RawConnection(broker.port) as connection:
            rejected = connection.produce(DAMAGED, one_batch(b"x"))
            assert rejected["error_code"] == STORAGE_ERROR
            assert "See the broker's log" in rejected["error_message"]
            assert connection.fetch(DAMAGED, 0)["error_code"] == STORAGE_ERROR
            assert connection.produce(INTACT, one_batch(b"x"))["base_offset"] == COUNT
        assert f"{missing.name} is missing" in broker.log()
        address = f"--bootstrap-server={broker.address}"
        assert cli.main(["cluster", "describe", address]) == 0
        assert f"Offline logs on broker 1: {DAMAGED}-0." in capsys.readouterr().out
        assert cli.main(["topics", "describe", DAMAGED, INTACT, address]) == 0
        said = capsys.readouterr().out
        assert f"No offset for {DAMAGED}-0 (KAFKA_STORAGE_ERROR)" in said
        assert f"No offset for {INTACT}-0" not in said
        assert cli.main(["log", "check", str(data)]) == 1
        assert f"{missing.name} is missing; the log stays offline" in capsys.readouterr().out
        broker.kill()
        assert sorted(path.name for path in missing.parent.iterdir()) == before
        missing.write_bytes(content)
        broker.restart()
        with RawConnection(broker.port) as connection:
            assert connection.produce(DAMAGED, one_batch(b"x"))["base_offset"] == COUNT
            found = connection.fetch(DAMAGED, 2, partition_max_bytes=1)
            values = values_of(found["records"])
            assert (values[0] or b"")[:1] == b"2"


def test_stop_with_an_offline_log_does_not_report_all_data_on_disk(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RunningBroker.start(data) as broker:
        with RawConnection(broker.port) as connection:
            connection.create_topic(DAMAGED)
            assert connection.produce(DAMAGED, one_batch(b"a"))["error_code"] == 0
            shutil.rmtree(data / f"{DAMAGED}-0")
            assert connection.produce(DAMAGED, one_batch(b"b"))["error_code"] == 0
        with pytest.raises(BrokerFailed, match="exit code 1"):
            broker.stop()
        stopped = "Headrace has stopped; not all data is on disk: 1 log is offline, "
        assert stopped in broker.log()
        before = broker.log_size()
        broker.restart()
        assert "segments were removed since the previous start" in broker.log(before)
