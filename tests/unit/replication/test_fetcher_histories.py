"""Three replicas whose leaders change at random, also to replicas without all records.

At the end, all logs are equal to that of the last leader, byte for byte. Elections are unclean, so
committed records can be lost; other tests check them.
"""

import random

import pytest

from headrace.log.log import Log
from headrace.log.scan import BatchWalk
from tests.storage.log_scenario import ManualClock, topic_config
from tests.unit.replication.replica_scenario import Node, Wire, elect, log_bytes

SEEDS = range(16)


def scanned_epochs(log: Log) -> list[tuple[int, int]]:
    """The leader epochs of the batches (I14)."""
    found: list[tuple[int, int]] = []
    for segment in log.segments.all:
        walk = BatchWalk(log.files, segment.open().fd, 0, segment.size, True)
        while (batch := walk.next()) is not None:
            if not found or batch.leader_epoch > found[-1][0]:
                found.append((int(batch.leader_epoch), int(batch.base_offset)))
        assert walk.error == ""
    return found


class Replicas:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        clock = ManualClock()
        self.clock = clock
        self.nodes = [Node(node_id, clock) for node_id in (1, 2, 3)]
        config = topic_config(segment_bytes=self.random.choice((300, 1000, 100_000)))
        for node in self.nodes:
            node.add(0, config)
        self.epoch = 0
        self.written = 0
        self.leader = self.nodes[0]
        self.wires: list[Wire] = []
        self.elect(self.leader)

    def elect(self, leader: Node) -> None:
        self.epoch += self.random.randint(1, 2)
        self.leader = leader
        others = [node for node in self.nodes if node is not leader]
        elect(leader, self.epoch, *others)
        self.wires = []
        for node in others:
            wire = Wire(node, leader)
            wire.machine.follow(node.partition())
            self.wires.append(wire)

    def step(self) -> None:
        match self.random.randrange(8):
            case 0:
                self.elect(self.random.choice(self.nodes))
            case 1:
                self.random.choice(self.wires).cut()
            case 2 | 3 | 4:
                for _ in range(self.random.randint(1, 3)):
                    self.leader.append(*(["v"] * self.random.randint(1, 3)), str(self.written))
                    self.written += 1
            case _:
                wire = self.random.choice(self.wires)
                for _ in range(self.random.randint(1, 4)):
                    self.random.choice((wire.ask, wire.receive))()
                wire.follower.worker.work()
                wire.apply_state()

    def apply_state(self) -> None:
        for wire in self.wires:
            for _ in range(3):
                wire.run()
                self.clock.advance(1000)
                wire.leader.expire()


@pytest.mark.parametrize("seed", SEEDS)
def test_all_replicas_end_as_their_last_leader(seed: int) -> None:
    replicas = Replicas(seed)
    for _ in range(60):
        replicas.step()
    replicas.elect(replicas.random.choice(replicas.nodes))
    replicas.leader.append("the end")
    replicas.apply_state()
    expected = replicas.leader.partition().log
    for node in replicas.nodes:
        log = node.partition().log
        assert log_bytes(log) == log_bytes(expected)
        assert log.log_end_offset == expected.log_end_offset
        assert log.epochs.entries() == scanned_epochs(log)
