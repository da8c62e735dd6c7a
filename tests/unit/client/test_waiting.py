"""What a client waits for, and when it reports that. Scripted, no I/O."""

import pytest

from headrace.client.admin import topics
from headrace.client.core.values import NewTopic
from headrace.client.core.wait_reports import ReportTimer
from headrace.wire.apis import CREATE_TOPICS, FETCH
from tests.unit.client.engine_scenario import Silence, World
from tests.unit.client.producer_scenario import Scene, fault
from tests.unit.client.test_fetch import T0
from tests.unit.client.test_fetch import Scene as FetchScene

NOT_CONTROLLER = 41
NOT_ENOUGH_REPLICAS = 19


def test_next_call_is_reported_after_its_own_two_seconds() -> None:
    timer = ReportTimer()
    assert not timer.is_due(1_900.0, 0.0)
    # The former call ended, and another started, between two looks.
    assert not timer.is_due(2_400.0, 2_300.0)
    assert timer.is_due(4_300.0, 2_300.0)


def test_reports_are_due_after_two_seconds_then_at_growing_intervals() -> None:
    timer = ReportTimer()
    reported = [at for at in range(0, 100_000, 500) if timer.is_due(at, 0)]
    assert reported == [2_000, 6_000, 14_000, 30_000, 60_000, 90_000]


def test_a_new_wait_starts_with_two_seconds_again() -> None:
    timer = ReportTimer()
    assert timer.is_due(2_000, 0)
    assert not timer.is_due(2_500, None)
    assert not timer.is_due(4_000, 3_000)
    assert timer.is_due(5_000, 3_000)


def test_an_operation_that_is_retried_shows_its_last_error() -> None:
    world = World()
    code = NOT_CONTROLLER
    world.answers[CREATE_TOPICS] = lambda node, request: {
        "topics": [{"name": "t", "error_code": code}]
    }
    outcome = world.engine.start(topics.create_topics(world.engine, [NewTopic("t")]))
    world.until(lambda: len(world.requests(CREATE_TOPICS)) == 3)
    retry_cause = world.engine.retry_cause()
    assert retry_cause is not None
    assert retry_cause.reason.startswith("creating topics failed: NOT_CONTROLLER: ")
    assert retry_cause.since_ms < world.now_ms
    code = 0
    world.run(outcome)
    assert world.engine.retry_cause() is None


def test_a_request_without_a_response_is_named() -> None:
    world = World()

    def silent(node: int, request: object) -> None:
        raise Silence

    world.answers[CREATE_TOPICS] = silent
    outcome = world.engine.start(topics.create_topics(world.engine, [NewTopic("t")]))
    world.until(lambda: bool(world.requests(CREATE_TOPICS)))
    assert world.engine.retry_cause() is None
    assert world.engine.oldest_wait() == (
        "no response from b1:9092 to CreateTopics, which needs the controller, and in a cluster "
        "ZooKeeper"
    )
    world.engine.cancel(outcome)


def test_a_broker_that_cannot_be_reached_is_named() -> None:
    world = World(down={1})
    outcome = world.engine.start(topics.create_topics(world.engine, [NewTopic("t")]))
    with pytest.raises(AssertionError, match="too long"):
        world.until(lambda: outcome.done, 1_000)
    retry_cause = world.engine.retry_cause()
    assert retry_cause is not None
    assert "connection refused" in retry_cause.reason


def test_a_producer_shows_why_its_records_are_not_written() -> None:
    scene = Scene()
    scene.log.faults = [fault(NOT_ENOUGH_REPLICAS)] * 3
    delivery = scene.append(partition=1)
    scene.world.until(lambda: not scene.log.faults)
    retry_cause = scene.world.engine.retry_cause()
    assert retry_cause is not None
    assert retry_cause.reason.startswith("cannot write to t-1: NOT_ENOUGH_REPLICAS: ")
    scene.world.until(lambda: delivery.done)
    assert scene.world.engine.retry_cause() is None


def test_a_producer_shows_a_missing_leader() -> None:
    scene = Scene()
    scene.world.leaders["t"] = [-1, -1]
    scene.log.faults = [fault(6)]
    scene.append(partition=0)
    scene.world.until(
        lambda: (
            (found := scene.world.engine.retry_cause()) is not None
            and found.reason == "cannot write to t-0: it has no leader"
        )
    )


def test_a_consumer_shows_errors_but_not_a_lack_of_records() -> None:
    scene = FetchScene()
    engine = scene.world.engine
    scene.machine.assign({T0: 0})
    scene.world.settle()
    assert (engine.retry_cause(), engine.oldest_wait()) == (None, "")
    scene.world.leaders["t"] = [-1, -1]
    scene.world.cut(1)
    scene.world.until(lambda: engine.retry_cause() is not None)
    retry_cause = engine.retry_cause()
    assert retry_cause is not None
    assert retry_cause.reason.startswith("cannot read t-0: ")
    assert scene.world.requests(FETCH)
