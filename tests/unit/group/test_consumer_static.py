"""Static members of the consumer protocol: an instance keeps its partitions while it is missing."""

from headrace.group.assignment import NO_PARTITIONS
from headrace.group.messages import ConsumerHeartbeat
from headrace.model.errors import ErrorCode
from tests.unit.group.consumer_scenario import REBALANCE_MS, SESSION_MS, Table


def instances() -> Table:
    table = Table()
    for name in ("a", "b"):
        table.join(name, instance_id=f"i-{name}")
    table.settle("a", "b")
    return table


def test_returning_instance_keeps_its_partitions() -> None:
    table = instances()
    had = table.indexes("b")
    assert table.leave("b", -2, "i-b").member_epoch == -2
    reply = table.join("b2", instance_id="i-b")
    assert table.indexes("b2") == had
    assert reply.member_epoch == table.epochs["a"] == 2, "nobody else hears of it"
    assert list(table.group.members) == ["a", "b2"]


def test_missing_instance_is_removed_after_its_session_timeout() -> None:
    table = instances()
    table.leave("b", -2, "i-b")
    for _ in range(3):
        table.wait(SESSION_MS // 3)
        table.consumer_heartbeat("a", instance_id="i-a")
    assert table.indexes("a") == [0, 1, 2, 3]


def test_partitions_that_a_missing_instance_had_to_revoke_are_free() -> None:
    table = Table()
    table.join("a", instance_id="i-a")
    table.join("b")
    table.consumer_heartbeat("a", instance_id="i-a", owned=None)
    table.leave("a", -2, "i-a")
    table.consumer_heartbeat("b")
    assert table.indexes("b") == [2, 3]


def test_active_instance_is_not_replaced() -> None:
    table = instances()
    asked = ConsumerHeartbeat("b2", 0, "b", "/h", "i-b", topics=("t",), owned=NO_PARTITIONS)
    assert table.refused(asked) is ErrorCode.UNRELEASED_INSTANCE_ID
    table.wait(SESSION_MS - 1)
    table.consumer_heartbeat("a", instance_id="i-a")
    table.wait(1)
    table.owned.pop("b")
    table.join("b2", instance_id="i-b")
    table.settle("a", "b2")


def test_older_member_with_the_same_instance_id_is_fenced() -> None:
    table = instances()
    table.leave("b", -2, "i-b")
    table.join("b2", instance_id="i-b")
    for epoch in (2, -1, -2):
        asked = ConsumerHeartbeat("b", epoch, "b", "/h", "i-b", owned=NO_PARTITIONS)
        assert table.refused(asked) is ErrorCode.FENCED_INSTANCE_ID
    unknown = ConsumerHeartbeat("c", 2, "c", "/h", "i-c")
    assert table.refused(unknown) is ErrorCode.UNKNOWN_MEMBER_ID


def test_missing_instance_is_fenced_with_its_old_epoch() -> None:
    table = instances()
    table.leave("b", -2, "i-b")
    asked = ConsumerHeartbeat("b", 2, "b", "/h", "i-b", owned=NO_PARTITIONS)
    assert table.refused(asked) is ErrorCode.FENCED_MEMBER_EPOCH


def test_instance_that_leaves_permanently_is_removed_immediately() -> None:
    table = instances()
    table.leave("b", -1, "i-b")
    assert "b" not in table.group.members
    assert "i-b" not in table.group.by_instance


def test_returning_instance_with_another_subscription_raises_the_epoch() -> None:
    table = Table({"t": 2, "u": 2})
    table.join("a", instance_id="i-a")
    table.leave("a", -2, "i-a")
    table.join("a2", "u", instance_id="i-a")
    table.settle("a2")
    assert table.indexes("a2", "u") == [0, 1]
    assert table.indexes("a2", "t") == []


def test_full_group_admits_a_returning_instance() -> None:
    table = instances()
    object.__setattr__(table.limits, "size_max", 2)
    table.leave("b", -2, "i-b")
    table.join("b2", instance_id="i-b")
    asked = ConsumerHeartbeat("c", 0, "c", "/h", topics=("t",), owned=NO_PARTITIONS)
    assert table.refused(asked) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_instances_survive_a_change_of_coordinator() -> None:
    table = instances()
    table.leave("b", -2, "i-b")
    table.restarted()
    table.join("b2", instance_id="i-b", rebalance_timeout_ms=REBALANCE_MS)
    assert len(table.indexes("b2")) == 2
