"""Repeats a step of start-up while the store is unreachable."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.coordination.port import ConnectionLost, SessionExpired, UnknownOutcome

_T = TypeVar("_T")
_PAUSE_S = 0.2
_log = logging.getLogger(__name__)


async def retry(step: Callable[[], Awaitable[_T]], wait_s: float) -> _T:
    """Repeat a step until the store responds. After `wait_s` seconds, raise its error."""
    loop = asyncio.get_running_loop()
    end = loop.time() + wait_s
    while True:
        try:
            return await step()
        except (ConnectionLost, SessionExpired, UnknownOutcome) as error:
            if loop.time() >= end:
                raise
            _log.warning("store unreachable during start-up, retrying: error=%s", error)
        await asyncio.sleep(_PAUSE_S)
