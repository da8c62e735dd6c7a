"""Hands out producer ids from blocks that the controller allocates.

Owns the ids that this broker has not handed out yet.

1. Each id is returned once.
2. The next block is requested before the current one is used up. Until it arrives, the rest of the
   current block serves new producers, for example while ZooKeeper is unreachable.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from headrace.model.errors import ApiError

RENEW_AT = 500
"""Half a block: this many producers can start while the controller is unreachable."""
RETRY_S_MIN = 1.0
RETRY_S_MAX = 30.0
_log = logging.getLogger(__name__)


class ProducerIds:
    def __init__(self, block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """`block` requests a block from the controller: the first id, and the count.

        It raises ApiError if the controller allocates none.
        """
        self._block = block
        self._ids: deque[int] = deque()
        self._lock = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None

    @property
    def left(self) -> int:
        return len(self._ids)

    def stop(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()

    async def next(self) -> int:
        """A producer id. Raises ApiError if none is left and the controller allocates none."""
        while not self._ids:
            await self._fetch(0)
        producer_id = self._ids.popleft()
        if self.left == RENEW_AT:
            self.renew()
        return producer_id

    def renew(self) -> None:
        """Request a block in the background, until the controller has allocated one."""
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        wait_s = RETRY_S_MIN
        while True:
            try:
                await self._fetch(RENEW_AT)
                return
            except ApiError as error:
                _log.warning(
                    "no producer ids allocated, retrying: error=%s left=%d", error, self.left
                )
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_S_MAX)

    async def _fetch(self, left_max: int) -> None:
        """Add a block, unless another caller has added one in the meantime."""
        async with self._lock:
            if self.left <= left_max:
                first, count = await self._block()
                self._ids.extend(range(first, first + count))
                _log.info("producer ids allocated: first=%d count=%d", first, count)
