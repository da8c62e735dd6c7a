"""Decides on the controller which brokers are live.

A broker is live if it is registered, and has responded to the controller under its present epoch.
A new controller considers all registered brokers live. A broker that registers later is admitted
when it has responded. Pure: time and the registered brokers are arguments.

1. If a broker was marked dead although its process still runs, that was a mistake. The broker is
   admitted again after a wait, which doubles with each mistake, so that a bad link does not cause
   repeated elections.
2. If most brokers do not respond to the controller, the controller is the isolated one. It must not
   mark them dead, and must not remove them from an ISR.
"""

from collections.abc import Mapping

from headrace.model.backoff import backoff
from headrace.model.cluster import BrokerInfo, LiveBroker

READMISSION_S_MIN = 1.0
READMISSION_S_MAX = 30.0
MISTAKE_FORGOTTEN_S = 300.0


class Liveness:
    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._admitted: dict[int, int] = {}
        """The epoch in which each broker is live."""
        self._stopping: dict[int, int] = {}
        """The epoch in which each broker requested to stop."""
        self._dead: dict[int, int] = {}
        """The epoch in which each broker was marked dead while it was not stopping."""
        self._mistakes: dict[int, tuple[int, float, int]] = {}
        """By broker: the number of mistakes, and the time and the epoch of the last one."""
        self._silent: dict[int, int] = {}
        """The epoch in which each broker last did not respond for the session timeout."""
        self._responded_at: dict[int, float] = {}
        """When each broker last responded."""
        self._admits_all = False

    def admit_all(self) -> None:
        """For a controller without links: all registered brokers are live."""
        self._admits_all = True

    def start_as_controller(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """This broker has become the controller: start with the registered brokers."""
        self._admitted = {node: info.epoch for node, info in brokers.items()}
        self._stopping.clear()
        self._dead.clear()
        self._silent.clear()
        self._responded_at.clear()

    def live(self, brokers: Mapping[int, BrokerInfo]) -> dict[int, LiveBroker]:
        return {
            node: LiveBroker(
                info.epoch,
                info.previous_epoch,
                self._stopping.get(node) == info.epoch,
                info.kept_since,
                info.lost_until,
            )
            for node, info in brokers.items()
            if self.is_admitted(node, info.epoch)
        }

    def is_admitted(self, node_id: int, epoch: int) -> bool:
        if self._admits_all or node_id == self._node_id:
            return True
        return self._admitted.get(node_id) == epoch

    def responded(self, info: BrokerInfo, now: float) -> bool:
        """A broker has responded. Returns whether it is live."""
        node_id = info.node_id
        self._responded_at[node_id] = now
        self._silent.pop(node_id, None)
        if self.is_admitted(node_id, info.epoch):
            return True
        is_same = self._dead.get(node_id) in (info.epoch, info.previous_epoch)
        if is_same and not info.is_restarted:
            self._note_mistake(info, now)
            count, since, _ = self._mistakes[node_id]
            if now - since < backoff(READMISSION_S_MIN, READMISSION_S_MAX, count):
                return False
        self._dead.pop(node_id, None)
        self._admitted[node_id] = info.epoch
        return True

    def _note_mistake(self, info: BrokerInfo, now: float) -> None:
        count, since, epoch = self._mistakes.get(info.node_id, (0, now, -1))
        if epoch == self._dead[info.node_id]:
            return
        count = 0 if now - since > MISTAKE_FORGOTTEN_S else count
        self._mistakes[info.node_id] = (count + 1, now, self._dead[info.node_id])

    def mark_dead(self, node_id: int, epoch: int) -> None:
        """Mark a broker dead in this epoch.

        A stopping broker is admitted immediately if it returns.
        """
        if self._admitted.get(node_id) == epoch:
            del self._admitted[node_id]
        if self._stopping.get(node_id) != epoch:
            self._dead[node_id] = epoch

    def mark_silent(self, node_id: int, epoch: int) -> None:
        """A broker has not responded for the session timeout."""
        self._silent[node_id] = epoch

    def silent(self, brokers: Mapping[int, BrokerInfo]) -> list[BrokerInfo] | None:
        """The brokers that are still silent; None if most are: then this broker is isolated."""
        others = [info for node, info in brokers.items() if node != self._node_id]
        silent = [info for info in others if self._silent.get(info.node_id) == info.epoch]
        return None if 2 * len(silent) > len(others) else silent

    def half_responded(self, brokers: Mapping[int, BrokerInfo], since: float) -> bool:
        """Whether at least half of the others have responded since then: otherwise this broker is
        isolated."""
        others = [node for node in brokers if node != self._node_id]
        responded = [node for node in others if self._responded_at.get(node, since - 1) >= since]
        return self._admits_all or 2 * len(responded) >= len(others)

    def has_responded(self, node_id: int, since: float) -> bool:
        """Whether a broker has responded since then."""
        return self._responded_at.get(node_id, since - 1) >= since

    def mark_stopping(self, node_id: int, epoch: int) -> None:
        self._stopping[node_id] = epoch
