"""A leader that might be replaced already returns no permanent error to clients."""

import pytest

from headrace.model.errors import ErrorCode
from tests.unit.replication.leader_scenario import Leader


@pytest.mark.parametrize(
    ("is_isolated", "told"),
    [(False, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), (True, ErrorCode.NOT_LEADER_OR_FOLLOWER)],
)
def test_possible_gap_on_a_stale_leader_is_retriable(is_isolated: bool, told: ErrorCode) -> None:
    leader = Leader()
    leader.node.is_stale = is_isolated
    assert leader.write(0, 0) == ErrorCode.NONE
    assert leader.write(0, 5) == told
    assert leader.write(0, 0) == ErrorCode.NONE
    assert leader.write(0, 1) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("is_isolated", "told"),
    [(False, ErrorCode.OFFSET_OUT_OF_RANGE), (True, ErrorCode.NOT_LEADER_OR_FOLLOWER)],
)
def test_offset_beyond_a_stale_leaders_end_is_retriable(is_isolated: bool, told: ErrorCode) -> None:
    leader = Leader()
    leader.node.is_stale = is_isolated
    assert leader.write(0, 0) == ErrorCode.NONE
    assert leader.read(1) == ErrorCode.NONE
    assert leader.read(2) == told
