"""Bursts: faults of one partition within seconds, each at a moment when it can do harm.

1. A burst can begin with a follower that is slow, that gets no records, or that gets no news from
   the store.
2. Then it strikes two or three times. Each strike waits for an event (a leader is elected, the
   leader has written, the ISR shrinks or grows), and kills or cuts off a broker at that moment.
3. At the end the burst undoes what it did to the network; killed brokers restart.
"""

from collections.abc import Callable
from functools import partial

from headrace.model.topics import PartitionState, TopicPartition
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster
from tests.simulation.ensemble import NAME as ZOOKEEPER

WAIT_S = 3.0
"""How long a strike waits for its event."""
EVENTS = ("soon", "led", "written", "shrunk", "shrunk", "grown", "grown")
VICTIMS = ("leader", "leader", "leader", "controller", "next")


class Burst:
    def __init__(self, cluster: Cluster, where: TopicPartition) -> None:
        self._cluster = cluster
        self._where = where
        self._random = cluster.world.random
        self._undo: list[Callable[[], object]] = []
        self._strikes_left = self._random.choice((2, 2, 3))

    def begin(self) -> str:
        state = self._state()
        if state is None or state.leader < 0 or len(state.isr) < 2:
            return ""
        if len(state.isr) < len(state.replicas) and self._random.random() < 0.8:
            return ""  # The last burst is not over.
        # The first in-sync replica is elected next.
        followers = [node for node in state.replicas if node in state.isr and node != state.leader]
        told = [self._delay(state.leader, followers)]
        if self._random.random() < 0.3:
            blind = self._random.choice(followers)
            self._blind(blind)
            told.append(f"broker-{blind} is cut off from the store")
        self._await_strike()
        return f"burst at {self._where}: {', '.join(told)}"

    def _delay(self, leader: int, followers: list[int]) -> str:
        """Delay one follower, or two of them in different ways."""
        chosen = self._random.choice(followers)
        how = self._random.choice(("", "slow", "hold", "hold and slow", "chain"))
        if "hold" in how:
            self._cut(self._name(leader), self._name(chosen))
        if "slow" in how:
            self._slow(self._name(chosen))
        if how == "chain":
            chosen, *others = followers
            self._cut(self._name(leader), self._name(chosen))
            for other in others:
                self._cut(self._name(chosen), self._name(other))
        return f"{how} broker-{chosen}" if how else "no delay"

    # Strikes.

    def _await_strike(self) -> None:
        event = self._random.choice(EVENTS)
        world = self._cluster.world
        if event == "soon":
            when = world.now + self._random.uniform(0.0, 0.4)
            self._cluster.ensemble.process.at(when, self._prepare, event)
            return
        begun = self._state()
        deadline = world.now + WAIT_S
        seen = -1

        def check() -> bool:
            """Whether the wait is over."""
            nonlocal seen
            if world.now >= deadline:
                self._end()
                return True
            version = self._cluster.ensemble.zxid
            if event in ("shrunk", "grown") and version == seen:
                return False
            seen = version
            if not self._has_happened(event, begun):
                return False
            self._prepare(event)
            return True

        world.watch(check)

    def _has_happened(self, event: str, begun: PartitionState | None) -> bool:
        state = self._state()
        if state is None or begun is None:
            return state is None
        if event == "shrunk":
            return len(state.isr) < len(begun.isr)
        if event == "grown":
            return not {*state.isr} <= {*begun.isr}
        if state.leader < 0 or state.leader_epoch == begun.leader_epoch:
            return False
        leader = self._cluster.leaders().get((self._where.topic, self._where.partition))
        if leader is None:
            return False
        return event == "led" or bool(leader.log.log_end_offset > leader.epoch_start_offset)

    def _prepare(self, event: str) -> None:
        """Change the state so that brokers get this event. A fault follows soon."""
        cluster, generator = self._cluster, self._random
        state = self._state()
        if state is None:
            self._end()
            return
        if generator.random() < 0.3:
            # The leader gets no news of the change that is in the store.
            self._blind(state.leader)
        if generator.random() < 0.3 and state.leader >= 0:
            # Followers get neither records nor the high watermark.
            for node in state.replicas:
                if node != state.leader:
                    self._cut(self._name(state.leader), self._name(node))
        after = generator.choice((0.0, 0.0, 0.003, 0.02, 0.1))
        if after:
            cluster.ensemble.process.at(cluster.world.now + after, self._strike, event)
        else:
            self._strike(event)

    def _strike(self, event: str) -> None:
        cluster, generator = self._cluster, self._random
        state = self._state()
        if state is None:
            self._end()
            return
        if generator.random() < 0.4:
            cluster.hush(generator.uniform(0.3, 2.5))
        self._strikes_left -= 1
        if self._strikes_left == 0:
            self._heal_later()
        victim = self._victim(state)
        if victim is not None:
            cluster.note(f"{event}: strike {victim.name}")
            victim.kill()
            after = generator.choice((0.05, 0.3, 0.3, 2.0))
            cluster.ensemble.process.at(cluster.world.now + after, victim.start_again)
        if self._strikes_left:
            self._await_strike()

    def _victim(self, state: PartitionState) -> SimulatedBroker | None:
        kind = self._random.choice(VICTIMS)
        node: int | None = state.leader
        if kind == "controller":
            node = self._cluster.controller_id()
        elif kind == "next":
            others = [each for each in state.replicas if each in state.isr and each != node]
            node = others[0] if others else None
        return None if node is None or node < 0 else self._cluster.brokers[node - 1]

    # The network.

    def _cut(self, source: str, target: str) -> None:
        network = self._cluster.network
        network.cut(source, target)
        self._undo.append(partial(network.heal_one, source, target))

    def _slow(self, name: str) -> None:
        slow = self._cluster.network.slow
        if name not in slow:
            slow.add(name)
            self._undo.append(partial(slow.discard, name))

    def _blind(self, node: int) -> None:
        """Cut a broker off the store, mostly for less than its session lasts."""
        if node < 0:
            return
        cluster, name = self._cluster, self._name(node)
        cluster.network.cut(ZOOKEEPER, name)
        seconds = self._random.uniform(0.2, 0.9) * cluster.options.session_timeout_s
        cluster.ensemble.process.at(
            cluster.world.now + seconds, cluster.network.heal_one, ZOOKEEPER, name
        )

    def _heal_later(self) -> None:
        cluster = self._cluster
        seconds = self._random.choice((0.0, 0.5, 2.0))
        cluster.ensemble.process.at(cluster.world.now + seconds, self._end)

    def _end(self) -> None:
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _state(self) -> PartitionState | None:
        states = self._cluster.stored(self._where.topic)
        return states[self._where.partition] if self._where.partition < len(states) else None

    def _name(self, node: int) -> str:
        return self._cluster.brokers[node - 1].name
