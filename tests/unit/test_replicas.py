"""What a broker does with the states that the image brings."""

from dataclasses import replace
from typing import Any, cast

from headrace.model.topics import NO_LEADER, PartitionState
from headrace.node.replicas import Replicas
from headrace.replication.partition import Partition
from tests.storage.log_scenario import ManualClock
from tests.unit.replication_world import Node

HERE, THERE = 1, 2
EPOCH = 101
LED = PartitionState(HERE, 5, (HERE, THERE), (HERE, THERE), 7, (EPOCH, 102))


class Following:
    def __init__(self) -> None:
        self.followed: dict[Partition, None] = {}

    def follow(self, partition: Partition) -> None:
        self.followed[partition] = None

    def unfollow(self, partition: Partition) -> None:
        self.followed.pop(partition, None)


class Scene:
    def __init__(self) -> None:
        self.node = Node(HERE, ManualClock())
        self.partition = self.node.add()
        self.following = Following()
        nothing = cast("Any", None)
        self.replicas = Replicas(
            HERE,
            nothing,
            nothing,
            nothing,
            self.node.table,
            self.node.clock,
            self.node.turn,
            nothing,
            lambda: EPOCH,
            self.following,
        )

    def told(self, state: PartitionState) -> tuple[bool, bool]:
        """Whether the partition is led here afterwards, and whether it is followed."""
        self.replicas._assume(self.partition, state)
        return self.partition.is_leader, self.partition in self.following.followed


def test_a_leadership_is_taken_up_and_given_up() -> None:
    scene = Scene()
    assert scene.told(LED) == (True, False)
    assert scene.told(replace(LED, leader=THERE, leader_epoch=6)) == (False, True)
    assert scene.told(replace(LED, leader=NO_LEADER, leader_epoch=7)) == (False, False)


def test_a_leadership_of_a_former_life_is_not_taken_up() -> None:
    scene = Scene()
    assert scene.told(replace(LED, isr_epochs=(EPOCH - 1, 102))) == (False, False)
    assert scene.told(replace(LED, leader_epoch=6)) == (True, False)


def test_a_lower_leader_epoch_is_never_taken() -> None:
    scene = Scene()
    scene.told(LED)
    assert scene.told(replace(LED, leader=THERE, leader_epoch=4, partition_epoch=99)) == (
        True,
        False,
    )
    assert scene.partition.leader_epoch == 5
