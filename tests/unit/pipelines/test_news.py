"""When a round of `--watch` starts, and how it counts."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from headrace.model.topics import TopicPartition
from headrace.pipelines.graph import SINK, SOURCE, TABLE, TOPIC, Flow, Graph, Node
from headrace.pipelines.news import Watcher, has_new_records, is_observable
from headrace.pipelines.outcome import Outcome
from headrace.pipelines.run_machine import COMPLETED, FAILED, FlowRun
from headrace.pipelines.running import Runner

A, B = TopicPartition("mill", 0), TopicPartition("mill", 1)


def test_records_after_the_positions_are_new() -> None:
    assert has_new_records({A: 5}, {A: 5}, {A: 6})
    assert not has_new_records({A: 6}, {A: 5}, {A: 6})


def test_records_of_a_new_partition_are_new() -> None:
    assert has_new_records({A: 5}, {A: 5}, {A: 5, B: 1})
    assert not has_new_records({A: 5}, {A: 5}, {A: 5, B: 0})


def test_end_that_a_round_has_seen_starts_no_other() -> None:
    # The last record of the partition is a transaction marker: no position reaches the end.
    assert not has_new_records({A: 5}, {A: 6}, {A: 6})


def test_topic_that_was_created_again_starts_a_round() -> None:
    assert has_new_records({A: 5}, {A: 5}, {A: 2})


def graph(*nodes: Node) -> Graph:
    return Graph("mill", {node.name: node for node in nodes})


def test_only_topics_are_observed() -> None:
    topic = Node("topic mill", TOPIC)
    assert is_observable(graph(topic, Node("bronze", TABLE)))
    assert not is_observable(graph(topic, Node("csv", SOURCE)))
    assert not is_observable(graph(Node("bronze", TABLE)))


class QuietRunner:
    """A pipeline without new data, until `polls` have passed."""

    def __init__(self, polls: int) -> None:
        self.polls = polls

    def ends(self, _: Graph) -> dict[str, dict[TopicPartition, int]]:
        self.polls -= 1
        return {"broker:1": {A: 5 if self.polls > 0 else 6}}

    def positions(self, _: Graph) -> dict[TopicPartition, int]:
        return {A: 5}

    def file_times(self) -> dict[Path, float]:
        return {}


def seconds_until_a_round(
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    *nodes: Node,
    polls: int = 101,
    interval_s: float = 0,
    round_s: float = 0,
    changes_at_s: float = 1_000,
) -> float:
    """The seconds after the start of a round at which the next one starts.

    Records are new after `polls`, one per second. `changes_at_s` is when a file changes.
    """
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    runner = QuietRunner(polls)
    monkeypatch.setattr(runner, "file_times", lambda: {Path("a.py"): now_s >= changes_at_s})
    watcher = Watcher(interval_s)
    of = graph(Node("topic mill", TOPIC), *nodes)
    watcher.begin(cast(Runner, runner), of)
    now_s += round_s
    watcher.wait(Outcome("mill", False, datetime.now(UTC), of, state=state))
    return now_s


def test_no_round_starts_without_new_data(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seconds_until_a_round(monkeypatch, COMPLETED) == 99


def test_records_that_arrived_during_a_round_start_the_next_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert seconds_until_a_round(monkeypatch, COMPLETED, polls=2) == 0
    assert seconds_until_a_round(monkeypatch, FAILED, polls=2) == 1


def test_failed_round_is_repeated_after_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seconds_until_a_round(monkeypatch, FAILED) == 10


def test_pipeline_with_other_sources_runs_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert seconds_until_a_round(monkeypatch, COMPLETED, Node("csv", SOURCE)) == 10


def test_new_records_wait_for_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_s(**how: float) -> float:
        return seconds_until_a_round(monkeypatch, COMPLETED, polls=2, interval_s=12, **how)

    assert start_s(round_s=3) == 12
    assert start_s(round_s=20) == 20
    # A failed round is not repeated earlier, and a changed file does not wait.
    assert seconds_until_a_round(monkeypatch, FAILED, interval_s=30) == 30
    assert start_s(round_s=3, changes_at_s=5) == 5


def test_rows_read_count_each_record_once() -> None:
    nodes = [Node("topic mill", TOPIC), Node("bronze", TABLE), Node("out", SINK)]
    of = graph(*nodes)
    flows = {"bronze": "topic mill", "copy": "topic mill", "grind": "bronze"}
    outcome = Outcome("mill", False, datetime.now(UTC), of)
    for name, source in flows.items():
        of.flows[name] = Flow(name, "out", (source,), "a.py", 1)
        outcome.flows[name] = FlowRun(name, COMPLETED, rows_read=7)
    assert outcome.rows_read() == 7
