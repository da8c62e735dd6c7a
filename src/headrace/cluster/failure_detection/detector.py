"""Acts on connection events: marks brokers live, removes dead ones, or resigns as controller.

On the controller: a broker that responds is live, a broker that refuses connections is removed, and
a silent broker loses its partitions. On any other broker: if the controller refuses connections,
this broker tries to become the controller. On every broker: responses that would name a broker
whose connection was just lost wait (`held`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.cluster.controller_role import ControllerRole
from headrace.cluster.failure_detection.held_responses import HeldResponses
from headrace.cluster.failure_detection.liveness_machine import Liveness
from headrace.cluster.failure_detection.probes import PROBES_PER_SILENCE, Probes
from headrace.cluster.peers import Peers
from headrace.cluster.registration import Registration
from headrace.env.clock import Clock
from headrace.model.cluster import BrokerInfo, ClusterImage

_RECENT_PROBES = 4
"""A response is recent if it is not older than so many probe intervals."""
_FORMER_CONTROLLER_S = 1.0
"""How long a new controller waits for a response of its predecessor, at most."""
_BROKERS_FOR_MAJORITY = 3
_log = logging.getLogger(__name__)


class FailureDetector:
    def __init__(
        self,
        *,
        node_id: int,
        image: ClusterImage,
        role: ControllerRole,
        peers: Peers,
        clock: Clock,
        liveness: Liveness,
        elect: Callable[[], None],
        remove: Callable[[BrokerInfo], Coroutine[Any, Any, None]],
        held: HeldResponses,
        registration: Registration,
        silence_s: float,
    ) -> None:
        """`elect` and `remove` are called on the controller only.

        `elect` starts elections soon; `remove` deletes the registration of a dead broker. A broker
        without a response for `silence_s` is silent.
        """
        self._registration = registration
        self._node_id = node_id
        self._image = image
        self._role = role
        self._clock = clock
        self._liveness = liveness
        self._elect = elect
        self._remove_broker = remove
        self._silence_s = silence_s
        self._silence_timer: asyncio.TimerHandle | None = None
        self._former_timer: asyncio.TimerHandle | None = None
        self._dead_controller: BrokerInfo | None = None
        self._removals: dict[asyncio.Task[None], None] = {}
        self._probes = Probes(
            node_id,
            image,
            role,
            peers,
            clock,
            silence_s,
            reached=self._reached,
            refused=self._refused,
            silent=self._fell_silent,
            linked=lambda info: held.reconnected(info.node_id),
            lost=lambda info: held.lost(info.node_id),
        )

    def update(self) -> None:
        """Watch the brokers that are registered now."""
        self._probes.update()

    async def stop(self) -> None:
        await self._probes.stop()
        for timer in (self._silence_timer, self._former_timer):
            if timer is not None:
                timer.cancel()
        removals = list(self._removals)
        for removal in removals:
            removal.cancel()
        if removals:
            await asyncio.wait(removals)

    def elected(self, is_new: bool) -> None:
        """This broker has read everything as the controller; `is_new`: for the first time."""
        if is_new:
            self._liveness.start_as_controller(self._image.brokers)
            former = self._image.brokers.get(self._image.controller_id)
            if former is not None and former.node_id != self._node_id:
                self._check_former_controller(former)
        # This broker can have been the controller before it lost its registration for some time.
        self.update()
        dead, self._dead_controller = self._dead_controller, None
        if dead is not None and self._image.brokers.get(dead.node_id) == dead:
            self._remove(dead)
        self._elect()

    def _reached(self, info: BrokerInfo) -> bool:
        was_live = self._liveness.is_admitted(info.node_id, info.epoch)
        is_live = self._liveness.responded(info, self._clock.monotonic())
        if is_live and not was_live:
            self._elect()
        return is_live

    def _refused(self, info: BrokerInfo) -> None:
        if self._role.is_controller:
            if self._liveness.is_admitted(info.node_id, info.epoch):
                self._remove(info)
        elif info.node_id == self._image.controller_id:
            self._dead_controller = info
            self._registration.look_for_controller(self._registration.election)

    def _fell_silent(self, info: BrokerInfo) -> None:
        self._liveness.mark_silent(info.node_id, info.epoch)
        if self._liveness.silent(self._image.brokers) is None:
            self._handle_silent_brokers()
        elif self._silence_timer is None:
            # Other brokers might be unresponsive as well. If most are, this broker is the isolated
            # one. Wait for one probe interval, which will show that.
            self._handle_silent_brokers_in(self._silence_s / PROBES_PER_SILENCE)

    def _handle_silent_brokers_in(self, wait_s: float) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        self._silence_timer = asyncio.get_running_loop().call_later(
            wait_s, self._handle_silent_brokers
        )

    def reaches_no_majority(self) -> bool:
        """Whether most brokers have not responded recently: then this broker might be isolated."""
        since = self._clock.monotonic() - _RECENT_PROBES * self._silence_s / PROBES_PER_SILENCE
        return not self._liveness.half_responded(self._image.brokers, since)

    def _handle_silent_brokers(self) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None
        if not self._role.is_controller:
            return
        silent = self._liveness.silent(self._image.brokers)
        if silent is None:
            _log.warning("most brokers are unresponsive, resigning as controller")
            self._registration.resign()
            return
        if silent and self.reaches_no_majority():
            self._handle_silent_brokers_in(self._silence_s / PROBES_PER_SILENCE)
            return
        for info in silent:
            if self._liveness.is_admitted(info.node_id, info.epoch):
                _log.warning("broker unresponsive, electing other leaders: broker=%d", info.node_id)
                self._liveness.mark_dead(info.node_id, info.epoch)
                self._elect()

    def _check_former_controller(self, former: BrokerInfo) -> None:
        """Elect other leaders if the former controller does not respond.

        It is still registered, so it has resigned because it is probably isolated. Its session can
        last for many seconds.
        """
        wait_s = min(_FORMER_CONTROLLER_S, self._silence_s / PROBES_PER_SILENCE)
        since = self._clock.monotonic()

        def check_response() -> None:
            # Of two brokers that cannot reach each other, neither knows which one is isolated.
            is_silent = not self._liveness.has_responded(former.node_id, since)
            if is_silent and len(self._image.brokers) >= _BROKERS_FOR_MAJORITY:
                self._liveness.mark_silent(former.node_id, former.epoch)
                self._handle_silent_brokers()

        if self._former_timer is not None:
            self._former_timer.cancel()
        self._former_timer = asyncio.get_running_loop().call_later(wait_s, check_response)

    def _remove(self, info: BrokerInfo) -> None:
        task = asyncio.get_running_loop().create_task(self._remove_broker(info))
        self._removals[task] = None
        task.add_done_callback(self._removals.pop)
