"""Forgets offsets that nobody needs any more, from time to time and in slices.

The wall clock decides, because commits are stamped with it; while it has parted from the time
that really passed, nothing expires (I31): a clock set wrong must not cost anybody an offset.
"""

import asyncio
import logging
from collections.abc import Callable

from headrace.env.clock import Clock
from headrace.group.led_shard import LedShard, Status
from headrace.group.records import GroupRecord
from headrace.group.settings import GroupSettings

PARTED_MS_MAX = 600_000
GROUPS_PER_SLICE = 50

_log = logging.getLogger(__name__)


class Expiry:
    def __init__(
        self,
        clock: Clock,
        settings: GroupSettings,
        active: Callable[[], list[LedShard]],
        append: Callable[[LedShard, list[GroupRecord]], None],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._active = active
        self._append = append
        self._task: asyncio.Task[None] | None = None
        self._origin_ms = self._difference_ms()
        self._is_paused = False

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.retention_check_ms / 1000)
            await self.expire()

    async def expire(self) -> None:
        """Look at every group once."""
        if self._has_parted():
            return
        looked_at = 0
        for led in self._active():
            for group_id in list(led.shard.groups):
                if led.status is not Status.ACTIVE:
                    break
                wall_ms = self._clock.wall_ms()
                kept_ms = self._settings.retention_ms
                records = led.shard.decide_expiry(group_id, wall_ms, kept_ms)
                if records:
                    self._append(led, records)
                looked_at += 1
                if looked_at % GROUPS_PER_SLICE == 0:
                    await asyncio.sleep(0)

    def _has_parted(self) -> bool:
        parted_ms = self._difference_ms() - self._origin_ms
        has_parted = abs(parted_ms) > PARTED_MS_MAX
        if has_parted and not self._is_paused:
            _log.warning(
                "the wall clock has moved by %d s on its own: no offsets expire until it is back",
                parted_ms // 1000,
            )
        self._is_paused = has_parted
        return has_parted

    def _difference_ms(self) -> int:
        return self._clock.wall_ms() - int(self._clock.elapsed() * 1000)
