"""Subscriptions by regular expression: what they mean, and what a hostile one may take."""

import pytest

from headrace.group.assignment import NO_PARTITIONS
from headrace.group.consumer.records import RegexKey
from headrace.group.consumer.regex import PATTERN_CHARACTERS_MAX, matching
from headrace.group.messages import ConsumerHeartbeat, ConsumerLimits
from headrace.group.records import decode_key
from headrace.model.errors import ApiError, ErrorCode
from tests.unit.group.consumer_scenario import REBALANCE_MS, Table


def by_regex(table: Table, name: str, regex: str) -> None:
    table.join(name, topics=None, regex=regex)


def test_an_expression_means_whole_names() -> None:
    names = ["foo", "foobar", "barfoo", "fo"]
    assert matching("foo.*", names) == ("foo", "foobar")
    assert matching("^foo", names) == ("foo",)
    assert matching(".*foo|fo", names) == ("barfoo", "fo", "foo")


@pytest.mark.parametrize(
    "pattern",
    [
        "[",
        "(?=look)ahead",
        "(a{1000}){1000}",
        r"\pL{500}",
        "x" * (PATTERN_CHARACTERS_MAX + 1),
        "a\ud800",
        "(" * 4_000,
    ],
)
def test_expression_that_re2_rejects_is_an_error_with_a_reason(pattern: str) -> None:
    with pytest.raises(ApiError) as refused:
        matching(pattern, ["a"])
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "RE2" in refused.value.message


def test_a_pattern_that_stalls_other_engines_takes_linear_time() -> None:
    assert matching("(x+x+)+y", ["x" * 249] * 1_000) == ()


def test_a_member_reads_the_topics_that_match_and_those_it_names() -> None:
    table = Table({"t": 1, "logs-a": 1, "logs-b": 1, "__consumer_offsets": 1})
    table.join("a", "t", regex="logs-.*")
    table.settle("a")
    assert len(table.owned["a"]) == 3
    assert table.group.is_subscribed_to("logs-b")
    by_regex(table, "all", ".*")
    assert table.group.is_subscribed_to("__consumer_offsets"), "as in Kafka: all is all"


def test_named_topics_apply_before_the_expression_is_resolved() -> None:
    table = Table({"t": 2, "logs-a": 4})
    by_regex(table, "b", "logs-a")
    joined = table.join("a", "t", regex="logs-.*")
    assert (table.indexes("a", "t"), table.indexes("a", "logs-a")) == ([0, 1], [])
    assert table.consumer_heartbeat("a").member_epoch == joined.member_epoch + 1
    table.settle("a", "b")
    assert table.indexes("a", "logs-a"), "though no topic is new to the group"


def test_expression_is_resolved_despite_unknown_named_topics() -> None:
    table = Table({"logs-a": 4})
    table.join("a", "none", regex="logs-.*")
    assert table.indexes("a", "logs-a") == [0, 1, 2, 3]


def test_created_and_deleted_topics_are_found_in_time() -> None:
    table = Table({"logs-a": 1})
    by_regex(table, "a", "logs-.*")
    table.create_topic("logs-b", 2)
    table.wait(10)
    assert table.consumer_heartbeat("a").member_epoch == 2
    assert table.indexes("a", "logs-b") == [0, 1]
    table.drop_topic("logs-a")
    table.wait(10)
    table.settle("a")
    assert len(table.owned["a"]) == 1


def test_many_topics_are_not_matched_at_every_change() -> None:
    table = Table({f"topic-{number}": 1 for number in range(500)} | {"logs-a": 1})
    by_regex(table, "a", "logs-.*")
    table.create_topic("logs-b", 1)
    assert table.consumer_heartbeat("a").member_epoch == 1, "it has just looked"
    table.wait(600)
    assert table.consumer_heartbeat("a").member_epoch == 2


def test_topics_are_matched_at_intervals_without_a_known_change() -> None:
    table = Table({"logs-a": 1}, ConsumerLimits(refresh_ms=30_000))
    by_regex(table, "a", "logs-.*")
    table.create_topic("logs-b", 1)
    table.topics.version -= 1
    assert table.consumer_heartbeat("a").member_epoch == 1
    table.wait(30_000)
    assert table.consumer_heartbeat("a").member_epoch == 2


def test_unused_expression_is_removed() -> None:
    table = Table({"t": 1, "logs-a": 1})
    for name in ("a", "b"):
        by_regex(table, name, "logs-.*")
    table.settle("a", "b")
    table.consumer_heartbeat("a", topics=("t",), regex="")
    assert list(table.group.regexes) == ["logs-.*"]
    table.leave("b")
    assert table.group.regexes == {}
    table.restarted()
    assert table.group.regexes == {}
    assert any(isinstance(decode_key(key), RegexKey) and value is None for key, value in table.log)


def test_an_expression_survives_a_change_of_coordinator() -> None:
    table = Table({"logs-a": 2})
    by_regex(table, "a", "logs-.*")
    table.restarted()
    assert table.group.is_subscribed_to("logs-a")
    assert table.consumer_heartbeat("a", owned=None).member_epoch == 1


def test_invalid_expression_does_not_change_the_group() -> None:
    table = Table()
    table.join("a")
    asked = ConsumerHeartbeat("a", 1, "a", "/h", regex="[", owned=NO_PARTITIONS)
    assert table.refused(asked) is ErrorCode.INVALID_REGULAR_EXPRESSION
    fresh = ConsumerHeartbeat(
        "b", 0, "b", "/h", rebalance_timeout_ms=REBALANCE_MS, regex="[", owned=NO_PARTITIONS
    )
    assert table.refused(fresh) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert table.group.regexes == {}
    assert list(table.group.members) == ["a"]
