"""Responses that would name a broker whose connection was just lost."""

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from headrace.cluster.failure_detection import held_responses as holds_module
from headrace.cluster.failure_detection import loss_machine
from headrace.cluster.failure_detection.held_responses import HeldResponses
from headrace.cluster.failure_detection.loss_machine import HOLD_S, LINGER_S, Losses
from headrace.env.clock import SystemClock
from headrace.handlers import find_coordinator, metadata
from headrace.model.cluster import BrokerInfo, ClusterImage, Endpoint
from headrace.model.topics import OFFSETS_TOPIC, PartitionState, TopicPartition, TopicState
from headrace.requests.context import RequestContext
from headrace.wire.apis import (
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
)
from headrace.wire.codec import Message
from tests.unit.controller.cluster_scenario import Cluster, Member, cluster_of
from tests.unit.controller.controller_scenario import until
from tests.unit.handlers.handler_scenario import asker


def test_broker_counts_as_lost_until_the_limit() -> None:
    losses = Losses()
    assert losses.lost(2, 5.0)
    assert losses.is_lost(2, 5.0)
    assert not losses.is_lost(3, 5.0)
    assert losses.is_lost(2, 5.0 + HOLD_S - 0.01)
    assert not losses.is_lost(2, 5.0 + HOLD_S)


def test_loss_is_remembered_for_some_seconds() -> None:
    losses = Losses()
    assert not losses.was_lost_lately(2, 5.0)
    losses.lost(2, 5.0)
    losses.expire(2)
    assert losses.was_lost_lately(2, 5.0 + LINGER_S - 0.01)
    assert not losses.was_lost_lately(2, 5.0 + LINGER_S)
    losses.reconnected(2)
    assert not losses.was_lost_lately(2, 5.0)


def test_new_connection_ends_the_loss() -> None:
    losses = Losses()
    losses.lost(2, 5.0)
    assert losses.reconnected(2)
    assert not losses.is_lost(2, 5.0)
    assert not losses.reconnected(2)
    assert losses.lost(2, 5.1), "the next loss counts again"


def test_second_loss_without_connection_does_not_extend_the_first() -> None:
    losses = Losses()
    losses.lost(2, 5.0)
    assert not losses.lost(2, 5.2)
    losses.expire(2)
    assert not losses.is_lost(2, 5.21)
    assert not losses.lost(2, 6.0), "it was not back in between"


def test_held_requests_are_bounded_in_number_and_names() -> None:
    losses = Losses()
    for _ in range(loss_machine.HELD_MAX):
        assert losses.hold(1)
    assert not losses.hold(0)
    losses.release(1)
    assert not losses.hold(loss_machine.HELD_NAMES_MAX)
    assert losses.hold(loss_machine.HELD_NAMES_MAX - loss_machine.HELD_MAX + 1)


def allow_long_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (holds_module, loss_machine):
        monkeypatch.setattr(module, "HOLD_S", 30.0)


def image_of(**leaders: int) -> ClusterImage:
    image = ClusterImage("c", 1)
    for node in (1, 2, 3):
        endpoint = Endpoint("PLAINTEXT", "localhost", 9000 + node)
        image.brokers[node] = BrokerInfo(node, (endpoint,), None, node)
    for name, leader in leaders.items():
        elect(image, name, leader)
    return image


def elect(image: ClusterImage, name: str, *leaders: int) -> None:
    states = tuple(PartitionState(each, 1, (1, 2, 3), (1, 2, 3), 1, (1, 2, 3)) for each in leaders)
    image.put_topic(TopicState(name, cast(Any, name), states, {}))


def hold(holds: HeldResponses, *names: str) -> Awaitable[None] | None:
    return holds.wait_for_election([TopicPartition(name, 0) for name in names], len(names))


def test_request_waits_for_the_election_of_each_lost_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow_long_holds(monkeypatch)

    async def scenario() -> None:
        image = image_of(a=2, b=3, c=2)
        holds = HeldResponses(image, SystemClock())
        assert hold(holds, "a", "b") is None
        holds.lost(2)
        assert hold(holds, "b") is None, "another leader must not hold the response"
        waiting = hold(holds, "b", "a", "c")
        assert waiting is not None
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        for name in ("a", "c"):
            assert not task.done()
            elect(image, name, 3)
            holds.wake()
            await asyncio.sleep(0)
        await task
        holds.stop()

    asyncio.run(scenario())


def test_request_resumes_when_the_connection_is_back_or_the_limit_has_passed() -> None:
    async def scenario() -> None:
        holds = HeldResponses(image_of(a=2), SystemClock())
        holds.lost(2)
        waiting = hold(holds, "a")
        assert waiting is not None
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        holds.reconnected(2)
        await task
        holds.lost(2)
        waiting = hold(holds, "a")
        assert waiting is not None
        await waiting
        assert hold(holds, "a") is None, "the limit has passed"
        holds.stop()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_more_requests_than_resume_in_one_step_all_resume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow_long_holds(monkeypatch)

    async def scenario() -> None:
        image = image_of(a=2)
        holds = HeldResponses(image, SystemClock())
        holds.lost(2)
        waits = [hold(holds, "a") for _ in range(loss_machine.HELD_MAX)]
        tasks = [asyncio.ensure_future(each) for each in waits if each is not None]
        assert len(tasks) == loss_machine.HELD_MAX
        assert hold(holds, "a") is None, "a request beyond the limit does not wait"
        await asyncio.sleep(0)
        elect(image, "a", 3)
        holds.wake()
        holds.wake()
        await asyncio.gather(*tasks)
        assert hold(holds, "a") is None
        holds.stop()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_end_of_a_connection_is_noticed_before_its_event() -> None:
    async def scenario() -> None:
        ended: set[int] = set()
        holds = HeldResponses(image_of(a=2, b=3), SystemClock(), ended.__contains__)
        assert hold(holds, "a") is None
        ended.add(2)
        assert hold(holds, "b") is None
        waiting = hold(holds, "b", "a")
        assert waiting is not None
        await waiting
        assert hold(holds, "a") is None, "the limit has passed, although the connection is closed"
        holds.stop()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_lost_broker_is_listed_only_by_the_first_response_or_if_it_leads() -> None:
    async def scenario() -> None:
        image = image_of(a=2)
        holds = HeldResponses(image, SystemClock())

        def listed(client: str, *leaders: int) -> list[int]:
            return sorted(holds.brokers_to_list(client, lambda: set(leaders)))

        holds.removed(image.brokers.pop(3))
        assert listed("x") == [1, 2], "it stopped cleanly"
        info = image.brokers[2]
        holds.lost(2)
        assert listed("x", 1) == [1, 2]
        assert listed("x", 1) == [1]
        assert listed("x", 1, 2) == [1, 2]
        holds.removed(image.brokers.pop(2))
        assert listed("y", 1) == [1, 2]
        assert listed("y", 1) == [1]
        image.brokers[2] = info
        holds.reconnected(2)
        assert listed("x", 1) == [1, 2]
        holds.stop()

    asyncio.run(scenario())


def test_handlers_without_a_lost_leader_respond_without_waiting() -> None:
    client = asker()
    client.add_topic("orders", partitions=3)
    requests: list[list[TopicPartition]] = []

    def hold_nothing(partitions: Any, _names: int) -> None:
        requests.append(list(partitions))

    client.broker.wait_for_election = hold_nothing
    client.ask(METADATA, 12, {"topics": [{"name": "orders"}]})
    client.ask(METADATA, 12, {"topics": None})
    client.ask(METADATA, 12, {"topics": []})
    client.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})
    client.ask(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ["t"]})
    orders = [TopicPartition("orders", index) for index in range(3)]
    assert requests[:3] == [orders, orders, []]
    assert [topic for ((topic, _),) in requests[3:]] == [OFFSETS_TOPIC]


@pytest.mark.parametrize("api", [OFFSET_FOR_LEADER_EPOCH, LIST_OFFSETS])
def test_requests_to_a_leader_wait_while_the_image_names_a_lost_one(api: int) -> None:
    """The client knows the election from another broker: an error would cost it a backoff."""
    client = asker()
    client.add_topic("orders")
    held: list[list[TopicPartition]] = []

    async def become_leader() -> None:
        client.partition("orders").is_leader = True

    def hold(partitions: Any, _names: int) -> Awaitable[None]:
        held.append(list(partitions))
        return become_leader()

    client.broker.wait_for_election = hold
    client.partition("orders").is_leader = False
    asked = {"partition": 0, "partition_index": 0, "leader_epoch": 0, "timestamp": -1}
    topics = [{"topic": "orders", "name": "orders", "partitions": [asked]}]
    request = {"replica_id": -1, "topics": topics}
    reply = client.ask(api, 4, request)
    assert reply["topics"][0]["partitions"][0]["error_code"] == 0
    assert held == [[TopicPartition("orders", 0)]]


def request_leader(member: Member) -> "Awaitable[Message] | Message":
    """What a client's Metadata request gets from this broker."""
    member.broker.wait_for_election = member.controller.wait_for_election
    member.broker.brokers_to_list = member.controller.brokers_to_list
    context = RequestContext(METADATA, 12, 1, None, "127.0.0.1:1", "PLAINTEXT")
    return metadata.handle(member.broker, context, {"topics": [{"name": "t", "topic_id": None}]})


@cluster_of(3)
async def test_metadata_of_every_broker_names_the_new_leader_after_a_crash(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that responds is neither the controller nor a replica."""
    allow_long_holds(monkeypatch)
    await cluster.add(4)
    await cluster.leader.controller.create_topic("t", assignment={0: [3, 2]})
    await cluster.agree()
    links = cluster.network.links
    await until(lambda: len({(link.source, link.port) for link in links}) == 12)
    member = cluster.members[4]
    assert isinstance(request_leader(member), dict)
    cluster.leader.store.faults.suspend()
    await cluster.crash(3)
    now = asyncio.get_running_loop().time
    await until(lambda: member.controller._held._losses.is_lost(3, now()))
    reply = request_leader(member)
    assert not isinstance(reply, dict), "no leader is elected yet"
    task = asyncio.ensure_future(reply)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not task.done()
    cluster.leader.store.faults.resume()
    reply = await task
    named = reply["topics"][0]["partitions"][0]
    assert (named["leader_id"], named["error_code"]) == (2, 0)
    await cluster.agree()
    assert [each["node_id"] for each in reply["brokers"]] == [1, 2, 3, 4]
    reply = request_leader(member)
    assert isinstance(reply, dict)
    assert [each["node_id"] for each in reply["brokers"]] == [1, 2, 4]


@cluster_of(3)
async def test_clean_stop_delays_no_response(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_long_holds(monkeypatch)
    await cluster.leader.controller.create_topic("t", assignment={0: [3, 2]})
    await cluster.agree()
    stopping = cluster.members.pop(3)
    assert await stopping.controller.controlled_shutdown()
    await until(lambda: all(each.state().leader == 2 for each in cluster.members.values()))
    await stopping.controller.stop()
    cluster.network.stop(stopping.port)
    for _ in range(50):
        await asyncio.sleep(0)
    for member in cluster.members.values():
        assert isinstance(request_leader(member), dict)
    await stopping.store.close()
    await cluster.agree()


def test_coordinator_lookup_waits_for_the_election(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow_long_holds(monkeypatch)

    async def scenario() -> None:
        client = asker()
        image = client.broker.image
        elect(image, OFFSETS_TOPIC, 2)
        for node in (2, 3):
            endpoint = Endpoint("PLAINTEXT", "localhost", 9000 + node)
            image.brokers[node] = BrokerInfo(node, (endpoint,), None, node)
        holds = HeldResponses(image, SystemClock())
        client.broker.wait_for_election = holds.wait_for_election
        holds.lost(2)
        context = RequestContext(FIND_COORDINATOR, 3, 1, None, "127.0.0.1:1", "PLAINTEXT")
        request = {"key_type": 0, "key": "g"}
        task = asyncio.ensure_future(find_coordinator.handle(client.broker, context, request))
        await asyncio.sleep(0)
        elect(image, OFFSETS_TOPIC, 3)
        holds.wake()
        assert (await task)["node_id"] == 3
        holds.stop()

    asyncio.run(asyncio.wait_for(scenario(), 20))
