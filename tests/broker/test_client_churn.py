"""Ten members of Headrace's client, which join, leave, pause and fail at random during writes.

Both protocols are tested (I21 to I23, in real time). HEADRACE_CHURN_SECONDS sets the duration,
HEADRACE_CHURN_SEED the seed.
"""

import os
import threading
import time
from random import Random
from typing import Any

import pytest

from headrace.client import ClientError, CommitFailed, GroupConsumer, connect
from headrace.testing import RunningBroker
from tests.broker.group_churn import GROUP, REBALANCE_MS, SEED, SESSION_MS, TOPIC, Record, churn

SECONDS = float(os.environ.get("HEADRACE_CHURN_SECONDS", "3"))
WAYS: dict[str, dict[str, Any]] = {
    "range": {"assignors": ("range",)},
    "cooperative-sticky": {"assignors": ("cooperative-sticky",)},
    "consumer": {"protocol": "consumer"},
}
OUTSIDE_S_MAX = (SESSION_MS + 2 * REBALANCE_MS) / 1000 + 30
"""The longest time without an assignment: a session timeout, two rebalances, a busy machine."""


class ChurningClient:
    """A thread that runs members sequentially. A paused member sends no requests."""

    def __init__(
        self, broker: RunningBroker, number: int, record: Record, settings: dict[str, Any]
    ) -> None:
        self.broker = broker
        self.name = f"client {number}"
        self.record = record
        self.settings = settings
        self.random = Random(f"{SEED} {number}")
        self.is_over = threading.Event()
        self.is_calm = threading.Event()
        self.thread = threading.Thread(target=self._run, name=self.name)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self.is_over.is_set():
                with connect(self.broker.address) as client:
                    member = client.group_consumer(
                        GROUP,
                        TOPIC,
                        auto_commit=False,
                        max_poll_interval_ms=REBALANCE_MS,
                        session_timeout_ms=SESSION_MS,
                        heartbeat_interval_ms=100,
                        **self.settings,
                    )
                    # One that is not closed has not left: the client's end is its death.
                    if self._live(member):
                        member.close()
                self.is_over.wait(self.random.uniform(0, 0.5))
        except Exception as error:  # noqa: BLE001 (the test reports it)
            self.record.troubles.append(f"{self.name}: {error!r}")

    def _live(self, member: GroupConsumer) -> bool:
        """Whether it leaves in peace."""
        end = time.monotonic() + self.random.uniform(0.3, 4)
        inside = time.monotonic()
        while not self.is_over.is_set():
            read = member.poll(50)
            if member.generation_id >= 0:
                inside = time.monotonic()
                for place in member.partitions:
                    self.record.own(member.generation_id, place.partition, member.member_id)
            elif time.monotonic() - inside > OUTSIDE_S_MAX:
                self.record.troubles.append(f"{self.name} is outside for too long")
            if self.is_calm.is_set():
                pass
            elif time.monotonic() > end:
                return self.random.random() < 0.5
            elif self.random.random() < 0.02:
                self.is_over.wait(self.random.uniform(0, 2 * SESSION_MS / 1000))
                inside = time.monotonic()
            try:
                member.commit()
            except CommitFailed:
                continue
            except ClientError as error:
                self.record.troubles.append(f"{self.name}: a commit ended with {error!r}")
            with self.record.lock:
                self.record.delivered.update(found.value or b"" for found in read)
        return True


@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize("way", WAYS)
def test_a_churning_group_of_our_clients_reads_everything_with_one_owner_each(
    tmp_path_factory: pytest.TempPathFactory, way: str
) -> None:
    data_dir = tmp_path_factory.mktemp("churn") / "data"
    record = churn(
        data_dir,
        SECONDS,
        lambda broker, number, record: ChurningClient(broker, number, record, WAYS[way]),
    )
    assert len(record.generations) > 1
