"""Batches in flight after a rejected one get its error, instead of a gap in sequences."""

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.model.errors import ErrorCode
from headrace.testing.disk import SimulatedFiles
from tests.storage.log_scenario import topic_config
from tests.unit.replication.leader_scenario import Leader
from tests.unit.replication.replica_scenario import TOPIC, elect, epoch_of, state


def resign(leader: Leader) -> Callable[[], None]:
    leader.partition.retire()
    return lambda: elect(leader.node, 2, isr=(1,))


def ask_for_two(leader: Leader) -> Callable[[], None]:
    leader.partition.configure(topic_config(min_insync_replicas=2))
    return lambda: leader.partition.configure(topic_config(min_insync_replicas=1))


def move_away(leader: Leader) -> Callable[[], None]:
    leader.node.table.drop(TOPIC, 0)
    return lambda: leader.node.table.add(leader.partition)


def fill_disk(leader: Leader) -> Callable[[], None]:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    files: SimulatedFiles = leader.node.files
    files.append = fail  # type: ignore[method-assign, assignment]
    return lambda: delattr(files, "append")


def test_required_replicas_are_limited_by_the_replication_factor() -> None:
    leader = Leader()
    leader.partition.configure(topic_config(min_insync_replicas=2))
    assert leader.write(0, 0) == ErrorCode.NOT_ENOUGH_REPLICAS
    leader.partition.retire()
    alone = replace(state(1, 2, isr=(1,)), replicas=(1,))
    leader.partition.become_leader(alone, epoch_of(1), 0)
    assert leader.write(0, 0) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("refuse", "told"),
    [
        (resign, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ask_for_two, ErrorCode.NOT_ENOUGH_REPLICAS),
        (move_away, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (fill_disk, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
@pytest.mark.parametrize("first", [0, 1, 0x7FFFFFFF])
def test_batches_after_a_rejected_one_get_the_same_error(
    refuse: Callable[[Leader], Callable[[], None]], told: ErrorCode, first: int
) -> None:
    leader = Leader()
    if first > 0:
        assert leader.write(0, first - 1) == ErrorCode.NONE
    second, third = (first + 1) & 0x7FFFFFFF, (first + 2) & 0x7FFFFFFF
    accept = refuse(leader)
    assert leader.write(0, first) == told
    accept()
    assert leader.write(0, second) == told
    assert leader.write(0, third) == told
    assert leader.write(0, first) == ErrorCode.NONE
    assert leader.write(0, second) == ErrorCode.NONE
    assert leader.write(0, third) == ErrorCode.NONE


def test_gap_without_a_rejected_batch_is_out_of_order() -> None:
    leader = Leader()
    assert leader.write(0, 0) == ErrorCode.NONE
    accept = resign(leader)
    assert leader.write(0, 5) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    accept()
    assert leader.write(0, 5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.write(0, 6) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batch_after_a_rejected_one_that_is_stored_is_accepted() -> None:
    leader = Leader()
    assert leader.write(0, 0) == ErrorCode.NONE
    accept = resign(leader)
    assert leader.write(0, 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    accept()
    assert leader.write(0, 1) == ErrorCode.NONE


def test_new_epoch_does_not_start_after_its_rejected_first_batch() -> None:
    leader = Leader()
    assert leader.write(0, 0) == ErrorCode.NONE
    accept = resign(leader)
    assert leader.write(1, 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    accept()
    assert leader.write(1, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.write(1, 0) == ErrorCode.NONE
    assert leader.write(1, 1) == ErrorCode.NONE
