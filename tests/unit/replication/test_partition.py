"""A partition's leader: committed records, in-sync replicas, and changes of the ISR."""

from dataclasses import replace

import pytest

from headrace.log.log import Log
from headrace.model.topics import PartitionState
from headrace.replication.partition import Partition
from headrace.replication.produce_exchange import ProduceExchange
from headrace.runtime.exchange import Peer
from headrace.testing.disk import SimulatedFiles
from headrace.wire.produce import ProduceRequest
from tests.storage.log_scenario import NOW_MS, TOPIC_ID, batch, open_log, topic_config

LEADER, ONE, TWO = 1, 2, 3
LAG_MS = 10_000


def eligible(_node: int, _epoch: int) -> bool:
    return True


class Leader:
    """Broker 1 leads a partition with replicas 1, 2 and 3, whose epochs are 10, 20 and 30."""

    def __init__(self, isr: tuple[tuple[int, int], ...] = ((1, 10), (2, 20), (3, 30))) -> None:
        self.log: Log = open_log(SimulatedFiles())
        self.partition = Partition("events", 0, TOPIC_ID, self.log, LEADER, 0, 1 << 20)
        self.partition.become_leader(state(isr=isr), 10, 0)

    def append(self, count: int = 1, now_ms: int = 0) -> None:
        for _ in range(count):
            before = self.log.written_end_offset
            self.partition.stage(batch("v"), NOW_MS)
            self.log.write(NOW_MS)
            self.partition.replicas.appended(before, now_ms)
            self.partition.advance()

    def fetched(self, node: int, offset: int, now_ms: int = 0, epoch: int = 0) -> int:
        follower = self.partition.replicas.followers[node]
        end_offset = self.log.written_end_offset
        follower.fetched(epoch or node * 10, offset, end_offset, now_ms)
        self.partition.advance()
        return int(self.partition.high_watermark)

    def wanted(self, now_ms: int = 0) -> tuple[tuple[int, int], ...] | None:
        return self.partition.wanted_isr(now_ms, LAG_MS, eligible)


def state(
    leader_epoch: int = 5,
    isr: tuple[tuple[int, int], ...] = ((1, 10), (2, 20), (3, 30)),
    partition_epoch: int = 7,
    leader: int = LEADER,
) -> PartitionState:
    members, epochs = tuple(m for m, _ in isr), tuple(e for _, e in isr)
    return PartitionState(leader, leader_epoch, (1, 2, 3), members, partition_epoch, epochs)


def test_record_is_committed_when_every_isr_member_fetches_the_next() -> None:
    leader = Leader()
    leader.append(3)
    assert leader.partition.high_watermark == 0
    assert leader.fetched(ONE, 3) == 0
    assert leader.fetched(TWO, 2) == 2
    assert leader.fetched(TWO, 3) == 3


def test_follower_outside_the_isr_does_not_delay_commits() -> None:
    leader = Leader(isr=((1, 10), (2, 20)))
    leader.append(2)
    assert leader.fetched(ONE, 2) == 2


def test_the_high_watermark_stays_below_min_insync_replicas() -> None:
    leader = Leader(isr=((1, 10), (2, 20)))
    leader.partition.configure(topic_config(min_insync_replicas=2))
    leader.append(1)
    assert leader.fetched(ONE, 1) == 1
    leader.append(1)
    assert leader.partition.apply_state(state(isr=((1, 10),), partition_epoch=8), 0)
    assert not leader.partition.advance()
    assert leader.partition.high_watermark == 1
    # A proposed member does not count before the controller has agreed.
    assert leader.fetched(ONE, 2) == 1
    leader.partition.replicas.propose(((1, 10), (2, 20)))
    assert not leader.partition.advance()
    leader.partition.apply_state(state(partition_epoch=9, isr=((1, 10), (2, 20))), 0)
    assert leader.partition.advance()
    assert leader.partition.high_watermark == 2


def test_no_more_replicas_must_be_in_sync_than_exist() -> None:
    leader = Leader(isr=((1, 10),))
    leader.partition.configure(topic_config(min_insync_replicas=3))
    leader.append(1)
    assert leader.partition.high_watermark == 0
    alone = replace(state(isr=((1, 10),), partition_epoch=8), replicas=(1,))
    assert leader.partition.apply_state(alone, 0)
    assert leader.partition.advance()


def test_nothing_is_committed_while_replicas_outside_the_isr_can_be_elected() -> None:
    """Also if min.insync.replicas was lowered, until the controller has cleared the ELR."""
    leader = Leader(isr=((1, 10),))
    with_elr = replace(state(isr=((1, 10),), partition_epoch=8), elr=((2, 20),))
    assert leader.partition.apply_state(with_elr, 0)
    leader.append(1)
    assert leader.partition.high_watermark == 0
    assert leader.partition.apply_state(replace(with_elr, elr=(), partition_epoch=9), 0)
    assert leader.partition.advance()
    # The image brings the ELR after the response to an ISR change, under the same epoch.
    assert leader.partition.apply_state(state(isr=((1, 10),), partition_epoch=10), 0)
    assert leader.partition.apply_state(replace(with_elr, partition_epoch=10), 0)
    leader.append(1)
    assert leader.partition.high_watermark == 1


def test_new_incarnation_of_a_member_is_ignored_until_it_is_admitted() -> None:
    leader = Leader(isr=((1, 10), (2, 20)))
    leader.append(2)
    assert leader.fetched(ONE, 2, epoch=21) == 0
    assert leader.wanted() == ((1, 10), (2, 21))
    leader.partition.replicas.propose(((1, 10), (2, 21)))
    leader.partition.advance()
    assert leader.partition.high_watermark == 2


def test_the_high_watermark_heeds_a_proposed_member_until_the_outcome_is_known() -> None:
    leader = Leader(isr=((1, 10), (2, 20)))
    leader.append(2)
    leader.fetched(ONE, 2)
    leader.fetched(TWO, 2)
    assert leader.wanted() == ((1, 10), (2, 20), (3, 30))
    leader.partition.replicas.propose(((1, 10), (2, 20), (3, 30)))
    assert leader.wanted() is None, "one change at a time"
    leader.append()
    assert leader.fetched(ONE, 3) == 2
    leader.partition.replicas.withdraw()
    assert leader.fetched(ONE, 3) == 3


def test_the_high_watermark_heeds_a_member_that_is_to_leave_until_the_store_has_agreed() -> None:
    leader = Leader()
    leader.append(1, now_ms=1)
    leader.fetched(ONE, 1, now_ms=2)
    assert leader.wanted(now_ms=LAG_MS) is None, "it lags, but not for long enough"
    assert leader.wanted(now_ms=LAG_MS + 1) == ((1, 10), (2, 20))
    leader.partition.replicas.propose(((1, 10), (2, 20)))
    leader.partition.advance()
    assert leader.partition.high_watermark == 0
    agreed = state(isr=((1, 10), (2, 20)), partition_epoch=8)
    assert leader.partition.apply_state(agreed, LAG_MS)
    leader.partition.advance()
    assert leader.partition.high_watermark == 1
    assert leader.partition.replicas.in_sync_count == 2


def test_a_follower_that_was_idle_with_the_leader_lags_only_from_the_next_append_on() -> None:
    leader = Leader()
    for node in (ONE, TWO):
        leader.fetched(node, 0, now_ms=1)
    hour = 3_600_000
    leader.append(1, now_ms=hour)
    assert leader.wanted(now_ms=hour + 1) is None
    assert leader.wanted(now_ms=hour + LAG_MS + 1) == ((1, 10),)


def test_follower_is_admitted_only_with_all_records_of_earlier_epochs() -> None:
    leader = Leader(isr=((1, 10),))
    leader.append(3)
    leader.partition.follow(state(leader_epoch=6, leader=TWO))
    leader.partition.high_watermark = 1
    leader.partition.become_leader(state(leader_epoch=7, isr=((1, 10), (2, 20))), 10, 0)
    assert not leader.partition.is_caught_up
    leader.fetched(TWO, 2)
    assert leader.wanted() is None, "above the high watermark, below the epoch's start (B4)"
    leader.fetched(TWO, 3)
    assert leader.wanted() == ((1, 10), (2, 20), (3, 30))


def test_unregistered_broker_is_not_admitted() -> None:
    leader = Leader(isr=((1, 10), (2, 20)))
    leader.fetched(TWO, 0)
    refused = leader.partition.wanted_isr(0, LAG_MS, lambda node, _: node != TWO)
    assert refused is None


@pytest.mark.parametrize(
    "stale",
    [state(partition_epoch=7), state(partition_epoch=6), state(leader_epoch=4, partition_epoch=9)],
)
def test_a_state_that_is_not_newer_changes_nothing(stale: PartitionState) -> None:
    leader = Leader(isr=((1, 10), (2, 20)))
    assert not leader.partition.apply_state(stale, 0)
    assert leader.partition.replicas.isr == ((1, 10), (2, 20))


def test_an_epoch_without_records_has_ended_where_the_log_ends() -> None:
    leader = Leader()
    assert leader.partition.end_of_epoch(4) == (4, 0), "an empty log: everything goes"
    leader.append(2)
    assert leader.partition.end_of_epoch(5) == (5, 2)
    leader.partition.follow(state(leader_epoch=6, leader=TWO))
    leader.partition.become_leader(state(leader_epoch=8), 10, 0)
    assert leader.partition.end_of_epoch(7) == (5, 2), "the largest that is not above (B2)"


def test_a_follower_never_takes_the_high_watermark_back() -> None:
    leader = Leader(isr=((1, 10),))
    leader.append(3)
    assert leader.partition.high_watermark == 3
    leader.partition.follow(state(leader_epoch=6, leader=TWO))
    assert not leader.partition.apply_leader_high_watermark(1)
    assert not leader.partition.apply_leader_high_watermark(99), "no further than its own log"
    assert leader.partition.high_watermark == 3


def test_end_of_a_reassignment_applies_after_a_response_with_its_partition_epoch() -> None:
    leader = Leader(isr=((1, 10), (2, 20)))
    answered = state(isr=((1, 10), (2, 20)), partition_epoch=8)
    assert leader.partition.apply_state(answered, 0)
    leader.partition.replicas.propose(((1, 10),))
    moved = replace(answered, replicas=(1, 2))
    assert leader.partition.apply_state(moved, 0)
    assert leader.partition.replicas.assigned == (1, 2)
    assert list(leader.partition.replicas.followers) == [2]
    assert leader.partition.replicas.proposed == ((1, 10),)
    assert not leader.partition.apply_state(moved, 0)


def test_retry_of_an_earlier_batch_is_acknowledged_before_later_batches() -> None:
    leader = Leader()
    leader.append(3)
    later, retry = (
        ProduceExchange(Peer([]), 1, 9, ProduceRequest(None, -1, 0), b"") for _ in range(2)
    )
    leader.partition.acks.await_commit(3, later)
    leader.partition.acks.await_commit(1, retry)
    leader.partition.assert_invariants()
    leader.fetched(ONE, 1)
    leader.fetched(TWO, 1)
    ack = leader.partition.acks.take_committed(leader.partition.high_watermark)
    assert ack is not None
    assert ack.exchange is retry
    assert leader.partition.acks.take_committed(leader.partition.high_watermark) is None


def test_high_watermark_above_the_log_breaks_an_invariant() -> None:
    leader = Leader()
    leader.append(1)
    leader.partition.assert_invariants()
    leader.partition.high_watermark = 2
    with pytest.raises(AssertionError, match="P6"):
        leader.partition.assert_invariants()
