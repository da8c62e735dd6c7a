"""Ten members that come and go at random while records are written (I21 to I23, with real time).

HEADRACE_CHURN_SECONDS makes it last longer, HEADRACE_CHURN_SEED makes it another one.
"""

import os
import threading
import time

import pytest

from headrace.testing import RunningBroker
from tests.broker.group_churn import (
    PARTITIONS,
    REBALANCE_MS,
    SESSION_MS,
    TOPIC,
    ChurningMember,
    ConsumerChurningMember,
    Record,
    fetch_offsets,
    numbered,
)
from tests.broker.group_member import make_offsets_topic
from tests.broker.raw import RawConnection, eventually, one_batch

SECONDS = float(os.environ.get("HEADRACE_CHURN_SECONDS", "4"))
SEED = int(os.environ.get("HEADRACE_CHURN_SEED", "1"))
MEMBERS = 10
SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
}


def watch(port: int, is_over: threading.Event, record: Record) -> None:
    """Look at the committed offsets all the time: none may go back."""
    seen: dict[int, int] = {}
    with RawConnection(port) as wire:
        while not is_over.is_set():
            for partition, offset in fetch_offsets(wire, list(range(PARTITIONS))).items():
                if offset < seen.get(partition, 0):
                    record.troubles.append(f"{partition} went back from {seen[partition]}")
                seen[partition] = offset
            is_over.wait(0.01)


@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize("kind", [ChurningMember, ConsumerChurningMember])
def test_a_churning_group_reads_everything_with_one_owner_each(
    kind: type[ChurningMember], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data_dir = tmp_path_factory.mktemp("churn") / "data"
    with RunningBroker.start(data_dir, settings=SETTINGS) as broker:
        record = Record()
        with RawConnection(broker.port) as wire:
            wire.create_topic(TOPIC, PARTITIONS)
            make_offsets_topic(wire)
            is_over = threading.Event()
            watcher = threading.Thread(target=watch, args=(broker.port, is_over, record))
            watcher.start()
            members = [kind(broker.port, n, record, SEED) for n in range(MEMBERS)]
            try:
                written = write_for(wire, SECONDS)
                for member in members:
                    member.is_calm.set()
                eventually(
                    "every record is delivered",
                    lambda: written <= record.delivered or bool(record.troubles),
                    REBALANCE_MS / 1000 + 60,
                )
            finally:
                is_over.set()
                for member in members:
                    member.is_over.set()
                for member in members:
                    member.thread.join()
                watcher.join()
    assert record.troubles == []
    assert record.delivered == written
    assert record.slowest_join_s < REBALANCE_MS / 1000 + 30
    assert len(record.generations) > 3


def write_for(wire: RawConnection, seconds: float) -> set[bytes]:
    written: set[bytes] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = numbered(len(written))
        answer = wire.produce(TOPIC, one_batch(value), partition=len(written) % PARTITIONS)
        assert answer["error_code"] == 0
        written.add(value)
        threading.Event().wait(0.005)
    return written
