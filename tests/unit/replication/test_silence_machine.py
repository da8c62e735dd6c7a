"""When a leader hands over a partition, or removes silent followers from its ISR."""

from headrace.replication.silence_machine import (
    CHECK_S,
    HAND_OVER_INTERVAL_S,
    RETRY_S,
    SILENCE_S_MIN,
    Action,
    FollowerSilence,
)

BROKERS = (1, 2, 3, 4, 5)
KEY = ("t", 0)


class Leader:
    """Runs a check every second, with a set of followers that fetch."""

    def __init__(
        self, others: tuple[int, ...] = (2, 3), needed: int = 2, fetch_wait_s: float = 0.5
    ) -> None:
        self.silence = FollowerSilence(fetch_wait_s)
        self.others = others
        self.replicas = len(others) + 1
        self.needed = needed
        self.fetching = set(others)
        self.epoch = 1
        self.now = 100.0
        self.is_waiting = True

    def run(self, seconds: float, action: Action = Action.HAND_OVER) -> list[float]:
        """When it took this action, in seconds from the start of this run."""
        began = self.now
        found = []
        while self.now < began + seconds:
            self.now += CHECK_S
            for node in self.fetching:
                self.silence.fetched(node, self.now)
            if not self.silence.check(BROKERS, self.now):
                continue
            judged = self.silence.decide(
                KEY,
                self.epoch,
                self.others,
                self.replicas,
                self.needed,
                self.now,
                is_waiting=self.is_waiting,
            )
            if judged is action:
                found.append(self.now - began)
        return found


def test_leader_hands_over_when_all_followers_are_silent() -> None:
    leader = Leader()
    assert leader.run(10) == []
    leader.fetching = set()
    assert leader.run(SILENCE_S_MIN + 2 * CHECK_S) == [SILENCE_S_MIN + CHECK_S]


def test_longer_fetch_waits_are_not_silence() -> None:
    leader = Leader(fetch_wait_s=5.0)
    assert leader.run(10) == []
    leader.fetching = set()
    assert leader.run(33) == [30 + CHECK_S]


def test_leader_keeps_partitions_while_half_of_the_isr_reaches_it() -> None:
    leader = Leader()
    leader.run(10)
    leader.fetching = {3}
    assert leader.run(30) == []
    pair = Leader(others=(2,), needed=1)
    pair.run(10)
    pair.fetching = set()
    assert pair.run(30) == [], "of two members neither is the majority"


def test_majority_of_a_large_isr_decides() -> None:
    leader = Leader(others=(2, 3, 4, 5))
    leader.run(10)
    leader.fetching = {2, 3}
    assert leader.run(30) == []
    leader.fetching = {2}
    assert leader.run(10) != []


def test_leader_keeps_partitions_if_the_others_are_too_few() -> None:
    leader = Leader(needed=3)
    leader.run(10)
    leader.fetching = set()
    assert leader.run(30) == []


def test_new_leader_waits_for_the_first_fetches() -> None:
    """The followers had no reason to fetch from it before."""
    leader = Leader()
    leader.run(10)
    leader.fetching, others, leader.others = set(), leader.others, ()
    leader.run(30)
    leader.others = others
    assert leader.run(CHECK_S) == []
    leader.fetching = {2, 3}
    assert leader.run(30) == []


def test_pause_of_the_leader_is_not_silence_of_its_followers() -> None:
    leader = Leader()
    leader.run(10)
    leader.now += 10 * SILENCE_S_MIN
    leader.fetching = set()
    assert leader.run(SILENCE_S_MIN) == []
    leader.fetching = {2, 3}
    assert leader.run(10) == []


def test_partition_is_handed_over_once_a_minute() -> None:
    leader = Leader()
    leader.run(10)
    leader.fetching = set()
    assert len(leader.run(5)) == 1
    leader.epoch += 2
    assert leader.run(HAND_OVER_INTERVAL_S - 2) == []
    assert leader.run(10) != []


def test_rejected_attempt_is_repeated_soon() -> None:
    leader = Leader()
    leader.run(10)
    leader.fetching = set()
    first, second, *_ = leader.run(20)
    assert second - first == RETRY_S


def test_broker_that_is_not_registered_is_not_silent() -> None:
    leader = Leader()
    leader.silence.fetched(9, leader.now)
    assert leader.run(10) == []
    assert not leader.silence.check(BROKERS, leader.now + CHECK_S)


def test_leader_removes_the_silent_one_of_two_followers() -> None:
    leader = Leader()
    leader.run(10)
    leader.fetching = {3}
    assert leader.run(SILENCE_S_MIN + 2 * CHECK_S, Action.REMOVE_SILENT) == [
        SILENCE_S_MIN + CHECK_S
    ]
    assert leader.silence.unreached == {2}


def test_leader_removes_its_only_follower_if_one_replica_is_enough() -> None:
    pair = Leader(others=(2,), needed=1)
    pair.run(10)
    pair.fetching = set()
    assert pair.run(10, Action.REMOVE_SILENT) != []


def test_leader_keeps_silent_followers_that_min_insync_needs() -> None:
    leader = Leader(needed=3)
    leader.run(10)
    leader.fetching = {3}
    assert leader.run(30, Action.REMOVE_SILENT) == []
    pair = Leader(others=(2,), needed=2)
    pair.run(10)
    pair.fetching = set()
    assert pair.run(30, Action.REMOVE_SILENT) == []
    assert pair.run(30) == [], "no other replica could be added"


def test_leader_of_two_in_sync_hands_over_if_the_other_may_reach_a_third_replica() -> None:
    leader = Leader(others=(2,), needed=2)
    leader.replicas = 3
    leader.run(10)
    leader.fetching = set()
    leader.is_waiting = False
    assert leader.run(30) == []
    leader.is_waiting = True
    assert leader.run(3) == [CHECK_S]


def test_leader_keeps_silent_followers_while_no_record_waits() -> None:
    leader = Leader()
    leader.run(10)
    leader.fetching = {3}
    leader.is_waiting = False
    assert leader.run(30, Action.REMOVE_SILENT) == []
    leader.is_waiting = True
    assert leader.run(CHECK_S, Action.REMOVE_SILENT) == [CHECK_S]


def test_follower_that_fetches_again_is_not_unreached() -> None:
    leader = Leader()
    leader.run(10)
    leader.fetching = {3}
    leader.run(10)
    leader.fetching = {2, 3}
    leader.run(CHECK_S)
    assert leader.silence.unreached == frozenset()


def test_follower_that_never_fetched_is_silent_if_a_record_waits_for_it() -> None:
    leader = Leader()
    leader.fetching = {3}
    assert leader.run(30, Action.REMOVE_SILENT) == []
    leader.silence.expect(2, leader.now)
    assert leader.run(SILENCE_S_MIN + 2 * CHECK_S, Action.REMOVE_SILENT) == [
        SILENCE_S_MIN + CHECK_S
    ]
    assert leader.silence.unreached == {2}
