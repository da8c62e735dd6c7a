"""Links by which a death is seen at once: the controller's to every broker, theirs to it.

Owns one task for each broker that is watched. A link that breaks is dialled again; two refusals 50
ms apart are a plain death. Silence is for the controller alone to judge: it asks each broker for a
sign of life, and one that gives none for as long as a session lasts is silent.

1. What is told is told of one incarnation; a broker that registers anew is watched anew.
2. It decides nothing: who is told asks the store whether it is still so.
"""

import asyncio
import logging
from collections.abc import Callable

from headrace.controller.peers import REDIAL_S, REFUSALS_OF_THE_DEAD, Peers
from headrace.controller.writing import Writer
from headrace.env.clock import Clock
from headrace.model.cluster import BrokerInfo, ClusterImage
from headrace.runtime.link import Link, LinkBroken, Refused, call
from headrace.wire.apis import API_VERSIONS

_RETRY_S_MAX = 1.0
_NOT_YET_S = 0.25
SIGNS_PER_SILENCE = 3

_log = logging.getLogger(__name__)

Tell = Callable[[BrokerInfo], None]
Admits = Callable[[BrokerInfo], bool]


class Guard:
    def __init__(
        self,
        node_id: int,
        image: ClusterImage,
        writer: Writer,
        peers: Peers,
        clock: Clock,
        silence_s: float,
        *,
        reached: Admits,
        refused: Tell,
        silent: Tell,
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._writer = writer
        self._peers = peers
        self._clock = clock
        self._silence_s = silence_s
        self._reached = reached
        self._refused = refused
        self._silent = silent
        self._watches: dict[tuple[int, int, bool], asyncio.Task[None]] = {}
        self._is_stopped = False

    def update(self) -> None:
        """Watch those whom this broker has to watch now."""
        if self._is_stopped or not self._peers.has_network:
            return
        is_controller = self._writer.fence is not None
        nodes = list(self._image.brokers) if is_controller else [self._image.controller_id]
        wanted = {
            (node, info.epoch, is_controller): info
            for node in nodes
            if node != self._node_id and (info := self._image.brokers.get(node)) is not None
        }
        for key in [key for key in self._watches if key not in wanted]:
            self._watches.pop(key).cancel()
        for key, info in wanted.items():
            if key not in self._watches:
                watch = self._watch_for_signs if is_controller else self._watch_for_death
                task = asyncio.get_running_loop().create_task(watch(info))
                task.add_done_callback(_report)
                self._watches[key] = task

    async def stop(self) -> None:
        # The end of the session is news, too, and comes after this.
        self._is_stopped = True
        tasks = list(self._watches.values())
        self._watches.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _watch_for_death(self, info: BrokerInfo) -> None:
        """As a broker, of the controller."""
        wait_s = REDIAL_S
        while True:
            link = await self._link(info)
            if link is None:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_S_MAX)
                continue
            wait_s = REDIAL_S
            await _end_of(link)

    async def _watch_for_signs(self, info: BrokerInfo) -> None:
        """As the controller, of a broker."""
        heard_at = self._clock.monotonic()
        is_silent = False
        interval_s = self._silence_s / SIGNS_PER_SILENCE
        wait_s = REDIAL_S
        watched: Link | None = None
        while True:
            link = await self._link(info)
            try:
                if link is not None:
                    if link is not watched:
                        watched, ended = link, _end_of(link)
                    await call(link, API_VERSIONS, 0, {}, interval_s)
                    heard_at, is_silent, wait_s = self._clock.monotonic(), False, REDIAL_S
                    is_live = self._reached(info)
                    await asyncio.wait([ended], timeout=interval_s if is_live else _NOT_YET_S)
                    continue
            except LinkBroken:
                pass
            if not is_silent and self._clock.monotonic() - heard_at >= self._silence_s:
                is_silent = True
                self._silent(info)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_S_MAX, interval_s)

    async def _link(self, info: BrokerInfo) -> Link | None:
        """The link to a broker; None if there is no way to it now. Tells of its plain death."""
        for refusals in range(REFUSALS_OF_THE_DEAD):
            if refusals:
                await asyncio.sleep(REDIAL_S)
            try:
                return await self._peers.link(info.node_id)
            except Refused:
                continue
            except LinkBroken:
                return None
        self._refused(info)
        return None


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("A broker is not watched any more.", exc_info=task.exception())


def _end_of(link: Link) -> "asyncio.Future[None]":
    """Done when the link has ended."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    link.on_close(end)
    return ended
