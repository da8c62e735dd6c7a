"""Watches the other brokers over one connection each, and reports events of these connections.

Owns one task per watched broker. The task opens an ended connection again. Two refused attempts
50 ms apart mean that the process is dead. The controller also sends probes over its connections: a
broker that responds to none for `silence_s` is silent. All other connections are idle.

1. Each event concerns one incarnation. A broker that registers again is watched by another task.
2. This module makes no decisions: the receivers of its events check them against the store.
3. Each broker has its own connection to each other broker. So not only the controller learns of a
   failure (`lost`) within a millisecond.
"""

import asyncio
import logging
from collections.abc import Callable

from headrace.cluster.controller_role import ControllerRole
from headrace.cluster.peers import RECONNECT_S, REFUSALS_OF_DEAD_PROCESS, Peers
from headrace.env.clock import Clock
from headrace.model.backoff import backoff
from headrace.model.cluster import BrokerInfo, ClusterImage
from headrace.runtime.link import Link, LinkBroken, Refused, call
from headrace.wire.apis import API_VERSIONS

_RETRY_S_MAX = 1.0
_PROBE_S_UNTIL_LIVE = 0.25
"""The probe interval for a broker that responds, but is not live yet."""
PROBES_PER_SILENCE = 6
_PROBES_PER_TIMEOUT = 2
"""The timeout of one probe, in probe intervals."""

_log = logging.getLogger(__name__)

Report = Callable[[BrokerInfo], None]
IsLive = Callable[[BrokerInfo], bool]


class Probes:
    def __init__(
        self,
        node_id: int,
        image: ClusterImage,
        role: ControllerRole,
        peers: Peers,
        clock: Clock,
        silence_s: float,
        *,
        reached: IsLive,
        refused: Report,
        silent: Report,
        linked: Report,
        lost: Report,
    ) -> None:
        """On every broker: `linked` reports the response on a new connection, `lost` a connection
        that was closed or reset, and `refused` a dead process. On the controller: `reached` reports
        each response and returns whether the broker is live, `silent` a silent broker.
        """
        self._node_id = node_id
        self._image = image
        self._role = role
        self._peers = peers
        self._clock = clock
        self._silence_s = silence_s
        self._reached = reached
        self._refused = refused
        self._silent = silent
        self._linked = linked
        self._lost = lost
        self._watches: dict[tuple[int, int, bool], asyncio.Task[None]] = {}
        self._is_stopped = False

    def update(self) -> None:
        """Watch every other registered broker, as the controller or as a broker."""
        if self._is_stopped or not self._peers.has_network:
            return
        is_controller = self._role.is_controller
        wanted = {
            (node, info.epoch, is_controller): info
            for node, info in self._image.brokers.items()
            if node != self._node_id
        }
        for key in [key for key in self._watches if key not in wanted]:
            self._watches.pop(key).cancel()
        for key, info in wanted.items():
            if key not in self._watches:
                watch = self._probe if is_controller else self._watch_connection
                task = asyncio.get_running_loop().create_task(watch(info))
                task.add_done_callback(_log_internal_error)
                self._watches[key] = task

    async def stop(self) -> None:
        # Afterwards, the end of the session calls `update` again.
        self._is_stopped = True
        tasks = list(self._watches.values())
        self._watches.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _watch_connection(self, info: BrokerInfo) -> None:
        """If this broker is not the controller: send one probe, then wait until the link ends."""
        failures = 0
        while True:
            link = await self._link(info)
            if link is None:
                failures += 1
                await asyncio.sleep(backoff(RECONNECT_S, _RETRY_S_MAX, failures))
                continue
            ended = self._end_of(info, link)
            try:
                # The kernel of a dying process still accepts connections: only a response counts.
                await call(link, API_VERSIONS, 0, {}, self._silence_s)
            except LinkBroken:
                await asyncio.sleep(RECONNECT_S)
                continue
            failures = 0
            self._linked(info)
            await ended

    async def _probe(self, info: BrokerInfo) -> None:
        """If this broker is the controller: send a probe periodically."""
        silence = _Silence(self._silence_s, self._clock, lambda: self._silent(info))
        interval_s = self._silence_s / PROBES_PER_SILENCE
        failures = 0
        watched: Link | None = None
        try:
            while True:
                link = await self._link(info)
                try:
                    if link is not None:
                        if link is not watched:
                            watched, ended = link, self._end_of(info, link)
                        await call(link, API_VERSIONS, 0, {}, _PROBES_PER_TIMEOUT * interval_s)
                        silence.end()
                        failures = 0
                        self._linked(info)
                        is_live = self._reached(info)
                        await asyncio.wait(
                            [ended], timeout=interval_s if is_live else _PROBE_S_UNTIL_LIVE
                        )
                        continue
                except LinkBroken:
                    pass
                failures += 1
                await asyncio.sleep(backoff(RECONNECT_S, min(_RETRY_S_MAX, interval_s), failures))
        finally:
            silence.cancel()

    def _end_of(self, info: BrokerInfo, link: Link) -> "asyncio.Future[None]":
        """A future that is done when the link has ended. Reports the end if the link was lost."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end() -> None:
            if link.is_lost and self._image.brokers.get(info.node_id) == info:
                self._lost(info)
            if not ended.done():
                ended.set_result(None)

        link.on_close(end)
        return ended

    async def _link(self, info: BrokerInfo) -> Link | None:
        """The link to a broker, or None if it is unreachable. Reports a dead process."""
        for refusals in range(REFUSALS_OF_DEAD_PROCESS):
            if refusals:
                await asyncio.sleep(RECONNECT_S)
            try:
                return await self._peers.link(info.node_id)
            except Refused:
                continue
            except LinkBroken:
                return None
        self._refused(info)
        return None


class _Silence:
    """Reports once that a broker has not responded for so many seconds."""

    def __init__(self, seconds: float, clock: Clock, report: Callable[[], None]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._report = report
        self.end()

    def end(self) -> None:
        """The broker has responded."""
        self.cancel()
        self._arm(self._seconds)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, seconds: float) -> None:
        self._due = self._clock.monotonic() + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def _fire(self) -> None:
        extra_s = self._seconds / PROBES_PER_SILENCE
        if self._clock.monotonic() - self._due > extra_s:
            # This process was paused, so a response might wait in its socket.
            self._arm(extra_s)
        else:
            self._report()

    _due = 0.0
    _timer: asyncio.TimerHandle | None = None


def _log_internal_error(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error(
            "failure detection of a broker failed with an internal error", exc_info=task.exception()
        )
