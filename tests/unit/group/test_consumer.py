"""A group of the consumer protocol (KIP-848): epochs, assignments and admission of members."""

import pytest

from headrace.group.assignment import NO_PARTITIONS
from headrace.group.consumer import machine
from headrace.group.messages import ConsumerHeartbeat, ConsumerLimits, Leaver
from headrace.model.errors import ApiError, ErrorCode
from tests.unit.group.consumer_scenario import GROUP, REBALANCE_MS, SESSION_MS, Table


def test_the_first_member_gets_all_partitions_with_its_first_heartbeat() -> None:
    table = Table()
    reply = table.join("a")
    assert reply.member_epoch == 1
    assert reply.heartbeat_interval_ms == 5_000
    assert table.indexes("a") == [0, 1, 2, 3]
    assert str(table.group.state) == "Stable"


def test_new_member_waits_until_the_owner_has_released_partitions() -> None:
    table = Table()
    table.join("a")
    assert table.join("b").assignment == NO_PARTITIONS
    assert table.epochs["b"] == 2
    assert str(table.group.state) == "Reconciling"
    told = table.consumer_heartbeat("a", owned=None)
    assert told.member_epoch == 1, "its epoch grows once it has given up what it must"
    assert table.indexes("a") == [0, 1]
    assert table.consumer_heartbeat("b").assignment is None, "nobody has said yet that it is free"
    assert table.consumer_heartbeat("a").member_epoch == 2
    assert table.consumer_heartbeat("b").assignment is not None
    assert table.indexes("b") == [2, 3]
    assert str(table.group.state) == "Stable"


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    table = Table()
    table.join("a")
    before = len(table.log)
    reply = table.consumer_heartbeat("a", owned=None)
    assert reply.assignment is None
    assert reply.member_epoch == 1
    assert len(table.log) == before


def test_full_heartbeat_returns_the_assignment_again() -> None:
    table = Table()
    table.join("a")
    reply = table.consumer_heartbeat("a", topics=("t",), rebalance_timeout_ms=REBALANCE_MS)
    assert reply.assignment == table.owned["a"]


def test_partitions_of_a_leaving_member_are_free_immediately() -> None:
    table = Table()
    for name in ("a", "b"):
        table.join(name)
    table.settle("a", "b")
    assert table.leave("b").member_epoch == -1
    assert str(table.group.state) == "Assigning"
    table.consumer_heartbeat("a")
    assert table.indexes("a") == [0, 1, 2, 3]


def test_group_without_members_keeps_increasing_its_epoch() -> None:
    table = Table()
    table.join("a")
    table.leave("a")
    assert str(table.group.state) == "Empty"
    table.restarted()
    assert table.join("b").member_epoch == 3


def test_member_without_heartbeats_is_removed_after_its_session_timeout() -> None:
    table = Table()
    for name in ("a", "b"):
        table.join(name)
    table.settle("a", "b")
    table.wait(SESSION_MS - 1)
    table.consumer_heartbeat("a")
    table.wait(1)
    assert list(table.group.members) == ["a"]
    assert table.refused(ConsumerHeartbeat("b", table.epochs["b"], "b", "/h")) is (
        ErrorCode.UNKNOWN_MEMBER_ID
    )


def test_member_that_does_not_revoke_in_time_is_removed() -> None:
    table = Table()
    table.join("a")
    table.join("b")
    has = table.owned["a"]
    for _ in range(REBALANCE_MS // 10_000):
        table.consumer_heartbeat("a", owned=has)
        table.consumer_heartbeat("b")
        table.wait(10_000)
    assert list(table.group.members) == ["b"]
    table.owned.pop("a")
    table.consumer_heartbeat("b")
    assert table.indexes("b") == [0, 1, 2, 3]


def test_deadlines_restart_when_the_group_is_loaded() -> None:
    table = Table()
    table.join("a")
    table.join("b")
    table.consumer_heartbeat("a", owned=None)
    table.wait(SESSION_MS - 1)
    table.restarted()
    table.wait(SESSION_MS - 1)
    assert len(table.group.members) == 2
    table.consumer_heartbeat("b")
    table.wait(1)
    assert list(table.group.members) == ["b"]


def test_removal_whose_append_fails_is_retried() -> None:
    table = Table()
    table.join("a")
    table.broken = ErrorCode.NOT_COORDINATOR
    table.wait(SESSION_MS)
    assert list(table.group.members) == ["a"]
    table.broken = None
    table.wait(SESSION_MS)
    assert table.group.is_empty


def test_lost_response_has_no_effect() -> None:
    table = Table()
    table.join("a")
    table.join("b")
    table.consumer_heartbeat("a", owned=None)
    mine = table.owned["a"]
    assert table.consumer_heartbeat("a").member_epoch == 2
    again = table.consumer_heartbeat(
        "a", epoch=1, owned=mine, topics=("t",), rebalance_timeout_ms=REBALANCE_MS
    )
    assert again.member_epoch == 2
    assert again.assignment == mine


@pytest.mark.parametrize("epoch", [2, 4])
def test_another_epoch_than_its_own_is_fenced(epoch: int) -> None:
    table = Table()
    for name in ("a", "b", "c"):
        table.join(name)
    table.settle("a", "b", "c")
    assert table.epochs["a"] == 3
    asked = ConsumerHeartbeat("a", epoch, "a", "/h", owned=table.owned["a"])
    assert table.refused(asked) is ErrorCode.FENCED_MEMBER_EPOCH


def test_the_previous_epoch_with_partitions_that_are_another_s_is_fenced() -> None:
    table = Table()
    table.join("a")
    all_of_it = table.owned["a"]
    table.join("b")
    table.settle("a", "b")
    asked = ConsumerHeartbeat("a", 1, "a", "/h", owned=all_of_it)
    assert table.refused(asked) is ErrorCode.FENCED_MEMBER_EPOCH


def test_fenced_member_joins_again_with_its_id_and_gets_partitions() -> None:
    table = Table()
    table.join("a")
    table.join("b")
    table.settle("a", "b")
    reply = table.join("a")
    assert reply.member_epoch == 2
    assert len(table.indexes("a")) == 2
    table.check_owners()


def test_unknown_member_ids_are_rejected() -> None:
    table = Table()
    assert table.refused(ConsumerHeartbeat("x", 3, "x", "/h")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.refused(ConsumerHeartbeat("x", -1, "x", "/h")) is ErrorCode.GROUP_ID_NOT_FOUND
    table.join("a")
    assert table.refused(ConsumerHeartbeat("x", 3, "x", "/h")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert table.refused(ConsumerHeartbeat("x", -1, "x", "/h")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_full_group_rejects_new_members_and_keeps_its_own() -> None:
    table = Table(limits=ConsumerLimits(size_max=1))
    table.join("a")
    asked = ConsumerHeartbeat("b", 0, "b", "/h", topics=("t",), owned=NO_PARTITIONS)
    assert table.refused(asked) is ErrorCode.GROUP_MAX_SIZE_REACHED
    table.join("a")


def test_total_size_of_subscriptions_is_limited() -> None:
    table = Table(limits=ConsumerLimits(metadata_bytes_max=3_000))
    table.join("a")
    names = tuple(f"{number:0249}" for number in range(10))
    asked = ConsumerHeartbeat("b", 0, "b", "/h", topics=names, owned=NO_PARTITIONS)
    assert table.refused(asked) is ErrorCode.GROUP_MAX_SIZE_REACHED
    table.join("b")


def test_new_partitions_and_topics_raise_the_epoch_at_the_next_heartbeat() -> None:
    table = Table()
    table.join("a", "t", "later")
    table.create_topic("t", 6)
    assert table.consumer_heartbeat("a").member_epoch == 2
    assert table.indexes("a") == [0, 1, 2, 3, 4, 5]
    table.create_topic("later", 2)
    assert table.consumer_heartbeat("a").member_epoch == 3
    assert table.indexes("a", "later") == [0, 1]
    table.create_topic("others", 2)
    assert table.consumer_heartbeat("a").member_epoch == 3
    table.drop_topic("later")
    table.consumer_heartbeat("a")
    assert table.consumer_heartbeat("a").member_epoch == 4
    assert len(table.owned["a"]) == 1


def test_topic_changes_without_a_coordinator_are_noticed_after_loading() -> None:
    table = Table()
    table.join("a")
    table.create_topic("t", 5)
    table.topics.version = 0
    table.restarted()
    assert table.consumer_heartbeat("a").member_epoch == 2
    assert table.indexes("a") == [0, 1, 2, 3, 4]


def test_another_subscription_raises_the_epoch() -> None:
    table = Table({"t": 2, "u": 2})
    table.join("a")
    table.consumer_heartbeat("a", topics=("t", "u"))
    assert table.epochs["a"] == 2
    assert table.indexes("a", "u") == [0, 1]
    table.consumer_heartbeat("a", topics=("u",))
    table.settle("a")
    assert table.indexes("a") == []


def test_assignor_that_most_members_request_is_used() -> None:
    table = Table({"t": 4, "u": 4})
    table.join("a", "t", "u", assignor="range")
    table.join("b", "t", "u", assignor="range")
    table.settle("a", "b")
    assert table.group.assignor == "range"
    assert table.indexes("a", "t") == table.indexes("a", "u") == [0, 1]


def test_next_coordinator_loads_the_same_state() -> None:
    table = Table()
    for name in ("a", "b", "c"):
        table.join(name, instance_id=f"i-{name}", rack_id="r")
    table.consumer_heartbeat("a", instance_id="i-a", owned=None)
    before = table.group
    table.restarted()
    after = table.group
    assert after is not before
    for what in ("epoch", "metadata_hash", "target_epoch", "members", "current", "targets"):
        assert getattr(after, what) == getattr(before, what), what
    assert after.assigned_since == before.assigned_since
    assert after.owners == before.owners
    assert after.by_instance == before.by_instance
    assert after.metadata_bytes == before.metadata_bytes


def test_a_compacted_log_keeps_the_epochs_in_which_partitions_were_assigned() -> None:
    table = Table()
    table.join("a")
    table.join("b")
    table.settle("a", "b")
    assert table.epochs["a"] == 2
    table.log = list(dict(table.log).items())
    table.restarted()
    table.group.check_commit("a", 1, [("t", 0), ("t", 1)])
    for partition in (("t", 2), ("absent", 0)):
        with pytest.raises(ApiError) as failure:
            table.group.check_commit("a", 1, [("t", 0), partition])
        assert failure.value.code is ErrorCode.STALE_MEMBER_EPOCH


def test_a_failed_append_changes_nothing() -> None:
    table = Table()
    table.join("a")
    before = dict(table.group.current)
    table.broken = ErrorCode.NOT_COORDINATOR
    with pytest.raises(ApiError):
        table.join("b")
    assert table.group.current == before
    assert list(table.group.members) == ["a"]
    table.broken = None
    assert table.join("b").member_epoch == 2


# Commits and offsets


def test_commits_need_the_member_s_own_epoch() -> None:
    table = Table()
    table.join("a")
    table.group.check_commit("a", 1, [("t", 0)])
    for member_id, epoch, code in (
        ("a", 0, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(ApiError) as refused:
            table.group.check_commit(member_id, epoch, [("t", 0)])
        assert refused.value.code is code
    table.leave("a")
    table.group.check_commit("", -1, [("t", 0)])


def test_commits_can_have_the_epoch_in_which_the_partition_was_assigned() -> None:
    table = Table()
    for name in ("a", "b"):
        table.join(name)
    table.settle("a", "b")
    assert (table.epochs["a"], table.indexes("a")) == (2, [0, 1])
    table.group.check_commit("a", 1, [("t", 0), ("t", 1)])
    table.leave("b")
    table.settle("a")
    assert (table.epochs["a"], table.indexes("a")) == (3, [0, 1, 2, 3])
    table.group.check_commit("a", 1, [("t", 0), ("t", 1)])
    table.group.check_commit("a", 3, [("t", 0), ("t", 2)])
    for epoch, partition in ((1, 2), (2, 2), (0, 0), (4, 0)):
        with pytest.raises(ApiError) as refused:
            table.group.check_commit("a", epoch, [("t", 0), ("t", partition)])
        assert refused.value.code is ErrorCode.STALE_MEMBER_EPOCH


def test_offset_fetch_without_a_member_id_is_allowed() -> None:
    table = Table()
    table.join("a")
    table.group.check_fetch(None, -1)
    table.group.check_fetch("a", 1)
    with pytest.raises(ApiError) as stale:
        table.group.check_fetch("a", 2)
    assert stale.value.code is ErrorCode.STALE_MEMBER_EPOCH
    with pytest.raises(ApiError) as unknown:
        table.group.check_fetch("x", 1)
    assert unknown.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_group_is_listed_and_deleted_with_its_type() -> None:
    table = Table()
    table.join("a")
    (listed,) = table.shard.list_groups(frozenset(), frozenset())
    assert listed == (GROUP, "consumer", "Stable", "consumer")
    assert table.shard.list_groups(frozenset({"empty"}), frozenset()) == []
    assert table.shard.list_groups(frozenset(), frozenset({"classic"})) == []
    assert table.shard.list_groups(frozenset({"stable"}), frozenset({"consumer"}))
    with pytest.raises(ApiError) as refused:
        table.shard.decide_group_deletion(GROUP)
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    _, errors = table.shard.decide_offset_deletion(GROUP, [("t", 0), ("other", 0)])
    assert errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    table.leave("a")
    table.append(table.shard.decide_group_deletion(GROUP))
    assert table.shard.find(GROUP) is None
    table.restarted()
    assert table.shard.find(GROUP) is None


def test_members_of_the_consumer_protocol_can_use_leave_group() -> None:
    table = Table()
    table.join("a")
    outcome, errors = table.group.leave([Leaver("a"), Leaver("x")], table.now)
    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert outcome.records


def test_many_simultaneous_members_join_and_get_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LARGE_GROUP_SIZE", 5)
    table = Table({"t": 60})
    names = [f"m{number}" for number in range(50)]
    for name in names:
        table.join(name)
    assert table.group.target_epoch < table.group.epoch == len(names)
    table.wait(10)
    table.consumer_heartbeat("m0")
    assert table.group.target_epoch == table.group.epoch
    table.settle(*names)
