"""Acts on connection events: marks brokers live, removes dead ones, or resigns as controller.

As the controller: a broker that responds is live, one that refuses connections is removed, and a
silent one loses its partitions. As any other broker: if the controller refuses connections, become
the controller unless another broker is first. On every broker: responses that name a broker whose
connection was just lost wait (`held`).
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

_CONTACT_PROBES = 4
_FORMER_CONTROLLER_S = 1.0
_PAIR = 2
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
        """As the controller: `elect` starts elections soon, `remove` removes a dead broker."""
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
            linked=lambda info: held.back(info.node_id),
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
        """This broker was elected controller, or the controller has read the state again."""
        if is_new:
            self._liveness.start_as_controller(self._image.brokers)
            former = self._image.brokers.get(self._image.controller_id)
            if former is not None and former.node_id != self._node_id:
                self._check_former_controller(former)
        # It might be the same controller as before, whose registration was lost for a while.
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
            self._judge_silence()
        elif self._silence_timer is None:
            # Other brokers might be unresponsive as well; one probe interval will show.
            self._judge_later(self._silence_s / PROBES_PER_SILENCE)

    def _judge_later(self, wait_s: float) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        self._silence_timer = asyncio.get_running_loop().call_later(wait_s, self._judge_silence)

    def reaches_no_majority(self) -> bool:
        """Whether most brokers have not responded recently, so that this one might be isolated."""
        since = self._clock.monotonic() - _CONTACT_PROBES * self._silence_s / PROBES_PER_SILENCE
        return not self._liveness.half_responded(self._image.brokers, since)

    def _judge_silence(self) -> None:
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
            self._judge_later(self._silence_s / PROBES_PER_SILENCE)
            return
        for info in silent:
            if self._liveness.is_admitted(info.node_id, info.epoch):
                _log.warning("broker unresponsive, electing other leaders: broker=%d", info.node_id)
                self._liveness.mark_dead(info.node_id, info.epoch)
                self._elect()

    def _check_former_controller(self, former: BrokerInfo) -> None:
        """A former controller that is still registered has resigned: it is probably isolated.

        Wait a moment for a response. Without one, elect other leaders before its session ends.
        """
        wait_s = min(_FORMER_CONTROLLER_S, self._silence_s / PROBES_PER_SILENCE)
        since = self._clock.monotonic()

        def judge() -> None:
            # Of two brokers that cannot reach each other, neither knows which one is isolated.
            is_silent = not self._liveness.has_responded(former.node_id, since)
            if is_silent and len(self._image.brokers) > _PAIR:
                self._liveness.mark_silent(former.node_id, former.epoch)
                self._judge_silence()

        if self._former_timer is not None:
            self._former_timer.cancel()
        self._former_timer = asyncio.get_running_loop().call_later(wait_s, judge)

    def _remove(self, info: BrokerInfo) -> None:
        task = asyncio.get_running_loop().create_task(self._remove_broker(info))
        self._removals[task] = None
        task.add_done_callback(self._removals.pop)
