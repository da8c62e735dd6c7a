"""Periodically returns leadership to preferred replicas.

Owns the timer. Every broker runs it; it has an effect only on the controller.
"""

import asyncio
import logging

from headrace.controller.fenced_writer import FencedWriter
from headrace.controller.reassignment import Reassignments
from headrace.model.errors import ApiError

_log = logging.getLogger(__name__)


class LeaderBalance:
    def __init__(
        self,
        reassignments: Reassignments,
        writer: FencedWriter,
        interval_s: float | None,
        imbalance_max: float,
    ) -> None:
        """Without an interval, it does nothing."""
        self._reassignments = reassignments
        self._writer = writer
        self._interval_s = interval_s
        self._imbalance_max = imbalance_max
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._interval_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_s, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _tick(self) -> None:
        self.start()
        if self._writer.role.is_controller and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            count = await self._reassignments.balance(self._imbalance_max)
            if count:
                _log.info("preferred leaders elected: partitions=%d", count)
        except ApiError as error:
            _log.warning("preferred leaders not elected: error=%s", error)
        finally:
            self._task = None
