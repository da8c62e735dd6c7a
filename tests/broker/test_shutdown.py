"""SIGTERM: requests in flight end, all data is on disk, and the next start needs no recovery."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import cramjam
import pytest

from headrace.log.upkeep.checkpoints import CLEAN_SHUTDOWN, LOG_CHECKPOINT, decode_log_checkpoint
from headrace.testing import RunningBroker
from tests.broker.raw import (
    FETCH,
    PRODUCE,
    RawConnection,
    eventually,
    many,
    one_batch,
    values_of,
)
from tests.broker.test_bad_input_memory import bomb

INT32_MAX = 0x7FFFFFFF
STOP_SECONDS = 30.0
"""A stop takes about 1 s. The limit allows for a busy machine."""
MIB = 1 << 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker.start(tmp_path / "data") as broker:
        yield broker


def marker_of(broker: RunningBroker) -> Path:
    return broker.data_dir / CLEAN_SHUTDOWN


def vouched_offset(broker: RunningBroker, partition: str) -> int:
    """Up to where the next start need not look at the log."""
    path = broker.data_dir / partition / LOG_CHECKPOINT
    checkpoint = decode_log_checkpoint(path.read_bytes())
    assert checkpoint is not None
    return checkpoint.recovery_point


def test_clean_stop_writes_a_marker_and_needs_no_recovery(broker: RunningBroker) -> None:
    with RawConnection(broker.port) as connection:
        connection.create_topic("kept", partitions=3)
        for partition in range(3):
            connection.produce("kept", one_batch(b"a", b"b"), partition=partition)
    assert not marker_of(broker).exists()
    broker.stop(STOP_SECONDS)
    assert marker_of(broker).exists()
    assert [vouched_offset(broker, f"kept-{partition}") for partition in range(3)] == [2, 2, 2]
    assert "all data is on disk" in broker.log()
    since = broker.log_size()
    broker.restart()
    assert not marker_of(broker).exists(), "a crash would look like a clean shutdown"
    with RawConnection(broker.port) as connection:
        for partition in range(3):
            found = connection.fetch("kept", 0, partition=partition)
            assert values_of(found["records"]) == [b"a", b"b"]
    assert "WARNING" not in broker.log(since)


def test_kill_writes_no_clean_stop_marker(broker: RunningBroker) -> None:
    with RawConnection(broker.port) as connection:
        connection.create_topic("kept")
        connection.produce("kept", one_batch(b"a"))
    broker.kill()
    assert not marker_of(broker).exists()
    broker.restart()
    with RawConnection(broker.port) as connection:
        assert values_of(connection.fetch("kept", 0)["records"]) == [b"a"]
    broker.stop(STOP_SECONDS)
    assert marker_of(broker).exists()


def test_long_polls_get_responses_before_a_stop(broker: RunningBroker) -> None:
    with many(broker.port, 20) as polling:
        polling[0].create_topic("quiet")
        for connection in polling:
            connection.send(connection.fetch_frame("quiet", 0, max_wait_ms=INT32_MAX))
        with RawConnection(broker.port) as other:
            assert other.end_offset("quiet") == 0  # So the polls have arrived.
        broker.stop(STOP_SECONDS)
        for connection in polling:
            reply = connection.read_answer(FETCH, 12)
            assert reply["responses"][0]["partitions"][0]["error_code"] == 0
            assert connection.wait_closed() == b""


def test_acknowledged_records_survive_a_stop(broker: RunningBroker) -> None:
    with RawConnection(broker.port) as connection:
        connection.create_topic("load")
    acknowledged: list[int] = []
    is_loaded = threading.Event()

    def load() -> None:
        # The stopping broker might reject a late connection.
        with suppress(OSError), RawConnection(broker.port) as connection:
            frame = connection.produce_frame("load", one_batch(b"x" * 200))
            while True:
                connection.send(frame * 20)
                for _ in range(20):
                    reply = connection.read_answer(PRODUCE, 9)
                    answer = reply["responses"][0]["partition_responses"][0]
                    assert answer["error_code"] == 0
                    acknowledged.append(answer["base_offset"])
                is_loaded.set()

    loaders = [threading.Thread(target=load) for _ in range(3)]
    for loader in loaders:
        loader.start()
    assert is_loaded.wait(40)
    broker.stop(STOP_SECONDS)
    for loader in loaders:
        loader.join()
    assert len(set(acknowledged)) == len(acknowledged)
    broker.restart()
    with RawConnection(broker.port) as connection:
        assert connection.end_offset("load") > max(acknowledged)
        found = connection.fetch("load", max(acknowledged))
        assert values_of(found["records"])[0] == b"x" * 200


def test_no_client_can_delay_a_stop(broker: RunningBroker) -> None:
    """Clients that do not read, unfinished requests, and work of closed connections."""
    with RawConnection(broker.port) as connection:
        connection.create_topic("slow")
        for _ in range(20):
            connection.produce("slow", one_batch(bytes(900_000)))
    batch = bomb(4, bytes(cramjam.zstd.compress(bytes(256 * MIB))))
    with (
        many(broker.port, 5, receive_buffer_bytes=65536) as unread,
        many(broker.port, 5) as unfinished,
        many(broker.port, 100) as bombers,
    ):
        for connection in unread:
            connection.send(connection.fetch_frame("slow", 0))
        for connection in unfinished:
            connection.send((99 * MIB).to_bytes(4, "big") + bytes(100_000))
        for connection in bombers:
            connection.send(connection.produce_frame("slow", batch))
        with RawConnection(broker.port) as connection:
            assert connection.end_offset("slow") == 20
        broker.stop(STOP_SECONDS)
    assert marker_of(broker).exists()


def test_a_second_signal_changes_nothing(broker: RunningBroker) -> None:
    process = broker._process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_SECONDS) == 0
    assert marker_of(broker).exists()


def test_stopping_broker_accepts_no_new_connection(broker: RunningBroker) -> None:
    port = broker.port
    broker.stop(STOP_SECONDS)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    broker.restart()
    eventually("the port is served again", lambda: broker.is_running and broker.port == port)


def test_missing_segment_file_is_an_error_only_for_its_readers(
    broker: RunningBroker,
) -> None:
    with RawConnection(broker.port) as connection:
        connection.create_topic("holed", segment_bytes=str(MIB))
        for _ in range(4):
            connection.produce("holed", one_batch(bytes(600_000)))
    broker.restart()
    (broker.data_dir / "holed-0" / "00000000000000000000.log").unlink()
    with RawConnection(broker.port) as connection:
        assert connection.fetch("holed", 0)["error_code"] == 56
        assert connection.fetch("holed", 3)["error_code"] == 0
        assert connection.produce("holed", one_batch(b"on"))["base_offset"] == 4
    assert "cannot be read" in broker.log()
    assert "Traceback" not in broker.log()


def test_stop_during_upkeep_of_a_log_is_clean(broker: RunningBroker) -> None:
    """Every partition has just begun new segments: their files are being put in order."""
    with RawConnection(broker.port) as connection:
        connection.create_topic("rolled", partitions=8, segment_bytes=str(MIB))
        for _ in range(4):
            for partition in range(8):
                connection.produce("rolled", one_batch(bytes(600_000)), partition=partition)
    broker.stop(STOP_SECONDS)
    assert marker_of(broker).exists()
    assert [vouched_offset(broker, f"rolled-{partition}") for partition in range(8)] == [4] * 8
