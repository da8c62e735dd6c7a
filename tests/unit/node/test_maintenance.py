"""The periodic work of a broker continues if one of its tasks fails."""

import asyncio
import errno
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.config.broker import BrokerConfig
from headrace.node.maintenance import Maintenance
from tests.storage.log_scenario import ManualClock

RETENTION = "log.retention.check.interval.ms"


class Scene:
    def __init__(self, fail: Callable[[], object]) -> None:
        self.checked = 0
        """How often the last task of a tick has run."""
        self.clock = ManualClock()
        nothing = cast("Any", None)
        logs = SimpleNamespace(
            apply_retention=lambda _: fail(),
            logs_with_due_jobs=self._logs_with_due_jobs,
        )
        self.maintenance = Maintenance(
            config=BrokerConfig.load({}, {RETENTION: "1"}),
            clock=self.clock,
            controller=nothing,
            logs=cast("Any", logs),
            table=nothing,
            appends=nothing,
            replicas=cast("Any", SimpleNamespace(high_watermarks=dict)),
            replication=None,
            worker=nothing,
            remove=nothing,
            is_connected=lambda: True,
            store_id=None,
        )

    def _logs_with_due_jobs(self, _: int) -> list[Any]:
        self.checked += 1
        return []

    def tick(self, count: int) -> None:
        asyncio.run(self._tick(count))

    async def _tick(self, count: int) -> None:
        for _ in range(count):
            self.maintenance._tick()
            self.maintenance.stop_timer()
            self.clock.advance(1)


def no_descriptor() -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def bug() -> None:
    raise ValueError("unexpected")


@pytest.mark.parametrize(("fail", "has_traceback"), [(no_descriptor, False), (bug, True)])
def test_failed_task_is_logged_once_and_the_others_run(
    fail: Callable[[], object], has_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(fail)
    scene.tick(10)
    assert scene.checked == 10
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith(
        "maintenance task failed, retrying: task=retention error="
    )
    assert bool(record.exc_info) is has_traceback
