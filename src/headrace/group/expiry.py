"""Deletes expired offsets, periodically and in slices.

Commits contain timestamps of the wall clock, so expiry uses the wall clock. Nothing expires while
the broker does not trust its wall clock, because a wrong clock must not delete offsets.
"""

import asyncio
import logging
from collections.abc import Callable

from headrace.coordinator.shard_runtime import Status
from headrace.env.clock import Clock
from headrace.group.coordinator_kind import GroupShardRuntime
from headrace.group.records import GroupRecord
from headrace.group.settings import GroupSettings

_logger = logging.getLogger(__name__)

GROUPS_PER_SLICE = 50


class Expiry:
    def __init__(
        self,
        clock: Clock,
        is_time_trusted: Callable[[], bool],
        settings: GroupSettings,
        active: Callable[[], list[GroupShardRuntime]],
        append: Callable[[GroupShardRuntime, list[GroupRecord]], None],
    ) -> None:
        self._clock = clock
        self._is_time_trusted = is_time_trusted
        self._settings = settings
        self._active = active
        self._append = append
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.retention_check_ms / 1000)
            try:
                await self.expire()
            except Exception:
                # The task must continue: otherwise offsets would expire only after a restart.
                _logger.exception("expired offsets not deleted, retrying")

    async def expire(self) -> None:
        """Check every group once."""
        if not self._is_time_trusted():
            return
        checked = 0
        for shard_runtime in self._active():
            for group_id in list(shard_runtime.shard.groups):
                if shard_runtime.status is not Status.ACTIVE:
                    break
                wall_ms = self._clock.wall_ms()
                retention_ms = self._settings.retention_ms
                records = shard_runtime.shard.decide_expiry(group_id, wall_ms, retention_ms)
                if records:
                    self._append(shard_runtime, records)
                checked += 1
                if checked % GROUPS_PER_SLICE == 0:
                    await asyncio.sleep(0)
