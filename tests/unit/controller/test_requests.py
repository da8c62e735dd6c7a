"""What brokers ask of the controller, over links and from its own broker."""

import asyncio
from itertools import pairwise
from typing import Any
from uuid import UUID

from headrace.coordination import layout
from headrace.model.errors import ErrorCode
from headrace.model.topics import NO_LEADER, TopicPartition
from headrace.requests.context import RequestContext
from headrace.requests.dispatch import handle_frame
from headrace.requests.token_requests import TOKEN_APIS
from headrace.runtime.link import LinkBroken
from headrace.wire.apis import (
    ALTER_PARTITION,
    ALTER_PARTITION_REASSIGNMENTS,
    APIS,
    CONTROLLER_APIS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
)
from headrace.wire.codec import decode_response, encode_request
from headrace.wire.header import read_header
from tests.unit.controller.cluster_scenario import Cluster, Member, cluster_of
from tests.unit.controller.controller_scenario import code_of, until


async def alter(
    cluster: Cluster, member: Member, isr: tuple[int, ...], **changes: Any
) -> dict[str, Any]:
    """Ask as the leader `member` for an ISR of these brokers, each in its present epoch."""
    topic = member.controller.image.topics["t"]
    state = topic.partitions[0]
    brokers = cluster.leader.controller.image.brokers
    part = {
        "partition_index": 0,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        "new_isr_with_epochs": [
            {"broker_id": node, "broker_epoch": brokers[node].epoch if node in brokers else 1}
            for node in isr
        ],
    } | changes
    request = {
        "broker_id": member.node_id,
        "broker_epoch": member.controller.broker_epoch,
        "topics": [{"topic_id": topic.topic_id, "partitions": [part]}],
    }
    reply = await member.controller.to_controller(ALTER_PARTITION, 3, request)
    if reply.get("error_code", 0) != ErrorCode.NONE:
        return reply
    slot: dict[str, Any] = reply["topics"][0]["partitions"][0]
    return slot


@cluster_of(3)
async def test_a_leader_changes_its_isr_through_the_controller(cluster: Cluster) -> None:
    for leader in (1, 2):
        controller = cluster.leader.controller
        await controller.create_topic("t", assignment={0: [leader, 3]})
        await cluster.agree()
        member = cluster.members[leader]
        slot = await alter(cluster, member, (leader,))
        assert slot.get("error_code", 0) == ErrorCode.NONE
        assert (slot["leader_id"], slot["leader_epoch"]) == (leader, 0)
        assert (slot["isr"], slot["partition_epoch"]) == ([leader], 1)
        await cluster.agree()
        assert member.state().isr == (leader,)
        # A late copy of the request gets the same response.
        again = await alter(cluster, member, (leader,), partition_epoch=0)
        assert again == slot
        grown = await alter(cluster, member, (leader, 3))
        assert grown["isr"] == [leader, 3]
        await cluster.agree()
        await controller.delete_topic("t")
        await cluster.agree()


@cluster_of(3)
async def test_requests_of_former_incarnations_and_leaders_are_rejected_b6(
    cluster: Cluster,
) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 3]})
    await cluster.agree()
    leader, follower = cluster.members[2], cluster.members[3]
    slot = await alter(cluster, follower, (3, 2))
    assert slot["error_code"] == ErrorCode.INVALID_REQUEST
    assert (await alter(cluster, leader, (2,), leader_epoch=-1))["error_code"] == (
        ErrorCode.FENCED_LEADER_EPOCH
    )
    stale = {"broker_id": 2, "broker_epoch": leader.controller.broker_epoch - 1, "topics": []}
    reply = await leader.controller.to_controller(ALTER_PARTITION, 3, stale)
    assert reply["error_code"] == ErrorCode.STALE_BROKER_EPOCH
    unknown = {
        "broker_id": 2,
        "broker_epoch": leader.controller.broker_epoch,
        "topics": [{"topic_id": None, "partitions": [{"partition_index": 0}]}],
    }
    reply = await leader.controller.to_controller(ALTER_PARTITION, 3, unknown)
    code = reply["topics"][0]["partitions"][0]["error_code"]
    assert code == ErrorCode.UNKNOWN_TOPIC_ID
    other = await cluster.members[3].controller.serve(ALTER_PARTITION, stale)
    assert other["error_code"] == ErrorCode.NOT_CONTROLLER


@cluster_of(3)
async def test_rejection_also_applies_to_a_late_copy_b5(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 3]})
    await cluster.agree()
    leader = cluster.members[2]
    before = leader.state()
    await alter(cluster, leader, (2,))
    await cluster.agree()
    slot = await alter(
        cluster,
        leader,
        (),
        new_isr_with_epochs=[
            {"broker_id": 2, "broker_epoch": leader.controller.broker_epoch},
            {"broker_id": 3, "broker_epoch": 1},
        ],
    )
    assert slot["error_code"] == ErrorCode.INELIGIBLE_REPLICA
    await until(lambda: leader.state().partition_epoch == before.partition_epoch + 2)
    assert (leader.state().isr, leader.state().leader_epoch) == ((2,), 0)
    late = await alter(cluster, leader, (2, 3), partition_epoch=before.partition_epoch + 1)
    assert late["error_code"] == ErrorCode.INVALID_UPDATE_VERSION


@cluster_of(3)
async def test_a_change_of_unknown_outcome_is_granted_once_b5(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 3]})
    for applied, isr in ((True, (2,)), (False, (2, 3))):
        await cluster.agree()
        before = cluster.members[2].state()
        cluster.leader.store.faults.leave_next_outcome_unknown(applied=applied)
        slot = await alter(cluster, cluster.members[2], isr)
        assert slot["isr"] == list(isr)
        assert slot["partition_epoch"] == before.partition_epoch + 1


@cluster_of(3)
async def test_simultaneous_changes_are_written_together(
    cluster: Cluster,
) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 3], 1: [3, 2]})
    await cluster.agree()
    writes = cluster.leader.store
    before = (await writes.get("/changes"))[1].version
    answers = await asyncio.gather(*(alter(cluster, cluster.members[2], (2,)) for _ in range(8)))
    assert all(answer["isr"] == [2] for answer in answers)
    assert (await writes.get("/changes"))[1].version == before + 1


@cluster_of(3)
async def test_leader_without_quorum_is_replaced_at_most_once_a_minute(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic(
        "t", assignment={0: [2, 3, 1]}, configs={"min.insync.replicas": "2"}
    )
    for leader, successor in ((2, 3), (3, 1)):
        await cluster.agree()
        slot = await alter(cluster, cluster.members[leader], (leader,))
        assert slot["error_code"] == ErrorCode.FENCED_LEADER_EPOCH
        await cluster.agree()
        assert cluster.leader.state().leader == successor
        assert cluster.leader.state().isr == (3, 1), "without the first leader, not below two"
    # Each replica was leader once and none reached the others, so the shrink is granted.
    slot = await alter(cluster, cluster.members[1], (1,))
    assert slot["isr"] == [1]


@cluster_of(3)
async def test_controlled_shutdown_hands_over_and_admits_the_broker_to_no_isr_b7(
    cluster: Cluster,
) -> None:
    controller = cluster.leader.controller
    await controller.create_topic("t", partitions=6, replication_factor=3)
    await controller.create_topic("alone", assignment={0: [2]})
    await cluster.agree()
    assert await cluster.members[2].controller.controlled_shutdown()
    await cluster.agree()
    states = controller.image.topics["t"].partitions
    assert all(state.leader != 2 and 2 not in state.isr for state in states)
    assert all(len(state.isr) == 2 for state in states)
    assert cluster.leader.state("alone").leader == 2
    leader = cluster.members[cluster.leader.state().leader]
    slot = await alter(cluster, leader, (1, 2, 3))
    assert slot["error_code"] == ErrorCode.INELIGIBLE_REPLICA
    epoch = cluster.members[2].controller.broker_epoch
    member = cluster.members.pop(2)
    await member.controller.stop()
    cluster.network.stop(member.port)
    await until(lambda: cluster.leader.state("alone").leader == NO_LEADER)
    await cluster.add(2, previous_epoch=epoch)
    await until(lambda: cluster.leader.state("alone").leader == 2)
    await cluster.agree()
    leader = cluster.members[cluster.leader.state().leader]
    assert (await alter(cluster, leader, (1, 2, 3)))["isr"] == [1, 2, 3]


@cluster_of(2)
async def test_controlled_shutdown_of_the_controller_hands_over_its_leaderships(
    cluster: Cluster,
) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [1, 2]})
    await cluster.agree()
    member = cluster.members.pop(1)
    assert await member.controller.controlled_shutdown()
    assert member.state().leader == 2
    await member.controller.stop()
    await cluster.agree()
    assert cluster.leader.state().leader == 2


@cluster_of(1)
async def test_single_broker_needs_no_controlled_shutdown(cluster: Cluster) -> None:
    assert await cluster.leader.controller.controlled_shutdown()


@cluster_of(3)
async def test_producer_ids_come_from_the_controller_in_blocks(cluster: Cluster) -> None:
    ids = [await member.controller.next_producer_id() for member in cluster.members.values()]
    assert all(after - before >= 1000 for before, after in pairwise(sorted(ids)))
    cluster.network.refused.add((cluster.members[3].port, cluster.members[1].port))
    assert await cluster.members[3].controller.next_producer_id() in {i + 1 for i in ids}


@cluster_of(3)
async def test_failed_disk_ends_leaderships_and_is_reported_to_a_new_controller(
    cluster: Cluster,
) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [3, 2]})
    await cluster.leader.controller.create_topic("u", assignment={0: [3]})
    await cluster.agree()
    member = cluster.members[3]
    member.controller.report_failed_log(topic_id(member, "t"), 0)
    member.controller.report_failed_log(topic_id(member, "u"), 0)
    await until(lambda: cluster.leader.state("u").leader == NO_LEADER)
    await cluster.agree()
    assert (member.state().leader, member.state().isr) == (2, (2,))
    await cluster.kill(1)
    await cluster.agree()
    await cluster.leader.controller.create_topic("w")
    await cluster.agree()
    await until(lambda: cluster.leader.state("u").leader == NO_LEADER)


@cluster_of(2)
async def test_a_lost_disk_is_reported_under_each_new_registration(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [2]})
    await cluster.agree()
    member = cluster.members[2]
    member.controller.report_failed_log(topic_id(member, "t"), 0)
    await until(lambda: cluster.leader.state().leader == NO_LEADER)
    before = member.controller.broker_epoch
    await cluster.leader.store.delete(layout.broker_path(2))
    await until(lambda: member.controller.broker_epoch > before)
    await cluster.agree()
    info = cluster.leader.controller.image.brokers[2]
    assert (info.previous_epoch, info.is_restarted) == (-1, False)
    brokers_with_offline_log = cluster.leader.controller._failover.brokers_with_offline_log
    await until(lambda: list(brokers_with_offline_log(TopicPartition("t", 0))) == [2])
    assert cluster.leader.state().leader == NO_LEADER


@cluster_of(3)
async def test_a_broker_with_a_lost_disk_does_not_rejoin_the_isr(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [3, 2]})
    await cluster.agree()
    cluster.members[3].controller.report_failed_log(topic_id(cluster.members[3], "t"), 0)
    await until(lambda: cluster.leader.state().isr == (2,))
    await cluster.agree()
    slot = await alter(cluster, cluster.members[2], (2, 3))
    assert slot["error_code"] == ErrorCode.INELIGIBLE_REPLICA
    assert cluster.leader.state().isr == (2,)


@cluster_of(3)
async def test_a_recreated_topic_does_not_inherit_the_lost_disk(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [3, 2]})
    await cluster.agree()
    former = topic_id(cluster.members[3], "t")
    cluster.members[3].controller.report_failed_log(former, 0)
    await until(lambda: cluster.leader.state().isr == (2,))
    await cluster.leader.controller.delete_topic("t")
    await cluster.agree()
    await cluster.leader.controller.create_topic("t", assignment={0: [3, 2]})
    await cluster.agree()
    assert topic_id(cluster.leader, "t") != former
    assert (
        list(cluster.leader.controller._failover.brokers_with_offline_log(TopicPartition("t", 0)))
        == []
    )
    assert cluster.leader.state().isr == (3, 2)


@cluster_of(4)
async def test_new_partitions_skip_a_broker_whose_connection_was_just_lost(
    cluster: Cluster,
) -> None:
    controller = cluster.leader.controller
    lost, leaving = [node for node in cluster.members if node != controller.node_id][:2]
    controller._held.lost(lost)
    controller._liveness.mark_stopping(leaving, controller.image.brokers[leaving].epoch)
    topic = await controller.create_topic("t", partitions=8, replication_factor=2)
    assert not {lost, leaving} & {node for each in topic.partitions for node in each.replicas}
    grown = await controller.create_partitions("t", 16)
    assert not {lost, leaving} & {node for each in grown.partitions for node in each.replicas}
    topic = await controller.create_topic("u", partitions=8, replication_factor=4)
    assert {each.leader for each in topic.partitions}.isdisjoint({lost, leaving})


def topic_id(member: Member, name: str) -> UUID:
    return member.controller.image.topics[name].topic_id


async def ask(member: Member, api_key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
    """As a client of this broker."""
    frame = encode_request(api_key, version, 7, "a-client", body)
    header = read_header(frame)
    context = RequestContext(*header[:4], "127.0.0.1:55", "PLAINTEXT")
    answer = handle_frame(member.broker, context, frame, header.body_at)
    whole = answer if isinstance(answer, bytes) else await answer
    correlation_id, reply = decode_response(api_key, version, whole)
    assert correlation_id == 7
    return reply


@cluster_of(3)
async def test_broker_responds_to_administrators_when_it_knows_the_leaders(
    cluster: Cluster,
) -> None:
    member = cluster.members[3]
    topics = [{"name": "t", "num_partitions": 4, "replication_factor": 2}]
    reply = await ask(member, CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 5000})
    assert reply["topics"][0]["error_code"] == ErrorCode.NONE
    topic = member.controller.image.topics["t"]
    assert reply["topics"][0]["topic_id"] == topic.topic_id
    assert all(state.leader > 0 for state in topic.partitions)
    again = await ask(member, CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 5000})
    assert again["topics"][0]["error_code"] == ErrorCode.TOPIC_ALREADY_EXISTS
    gone = {"topics": [{"name": "t", "topic_id": None}], "timeout_ms": 5000}
    reply = await ask(member, DELETE_TOPICS, 6, gone)
    assert reply["responses"][0]["error_code"] == ErrorCode.NONE
    assert member.controller.image.topics == {}


_RETENTION = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
_REQUESTS_AFTER_A_CHANGE: list[tuple[int, dict[str, Any]]] = [
    (
        CREATE_TOPICS,
        {"topics": [{"name": "deleted", "num_partitions": 1, "replication_factor": 1}]},
    ),
    (DELETE_TOPICS, {"topics": [{"name": "a", "topic_id": None}]}),
    (CREATE_PARTITIONS, {"topics": [{"name": "b", "count": 2, "assignments": None}]}),
    (
        INCREMENTAL_ALTER_CONFIGS,
        {"resources": [{"resource_type": 2, "resource_name": "c", "configs": [_RETENTION]}]},
    ),
    (
        ALTER_PARTITION_REASSIGNMENTS,
        {"topics": [{"name": "d", "partitions": [{"partition_index": 0, "replicas": [3]}]}]},
    ),
    (ELECT_LEADERS, {"topic_partitions": [{"topic": "e", "partitions": [0]}]}),
]
"""A request for each topic that another controller has created or deleted."""


@cluster_of(3)
async def test_former_controller_does_not_reject_requests_because_of_its_old_image(
    cluster: Cluster,
) -> None:
    former = cluster.members[1]
    await former.controller.create_topic("deleted")
    await cluster.agree()
    former.store.faults.suspend()
    await former.store.faults.expire()
    await until(lambda: any(cluster.members[n].controller.is_controller for n in (2, 3)))
    successor = next(
        cluster.members[n] for n in (2, 3) if cluster.members[n].controller.is_controller
    )
    await successor.controller.delete_topic("deleted")
    for name in "abcde":
        await successor.controller.create_topic(name, assignment={0: [2]})
    assert former.controller.is_controller
    assert list(former.controller.image.topics) == ["deleted"]
    waiting = [
        asyncio.ensure_future(ask(former, api_key, APIS[api_key].version_max, request))
        for api_key, request in _REQUESTS_AFTER_A_CHANGE
    ]
    await asyncio.wait(waiting, timeout=0.2)
    former.store.faults.resume()
    former.store.faults.renew()
    for reply in await asyncio.gather(*waiting):
        assert error_codes(reply) <= {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED}


@cluster_of(1)
async def test_former_controller_executes_no_request(cluster: Cluster) -> None:
    """Not even one without effect: its image is old."""
    member = cluster.leader
    # Another controller was elected, and this one has not noticed it yet.
    data, _ = await member.store.get(layout.CONTROLLER_EPOCH)
    await member.store.set(layout.CONTROLLER_EPOCH, data)
    for api_key in sorted(CONTROLLER_APIS - TOKEN_APIS):
        member.controller._writer.role.is_controller = True
        version = APIS[api_key].version_max
        frame = encode_request(api_key, version, 7, "a-client", {})
        header = read_header(frame)
        context = RequestContext(*header[:4], "127.0.0.1:55", "PLAINTEXT")
        context.is_forwarded = True
        answer = handle_frame(member.broker, context, frame, header.body_at)
        assert not isinstance(answer, bytes)
        assert await code_of(answer) is ErrorCode.NOT_CONTROLLER


@cluster_of(1)
async def test_request_of_a_client_that_disconnects_is_completed(cluster: Cluster) -> None:
    member = cluster.leader
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in "ab"]
    request = asyncio.ensure_future(ask(member, CREATE_TOPICS, 7, {"topics": topics}))
    await asyncio.sleep(0)
    request.cancel()  # The server does this after a disconnection.
    await until(lambda: set(member.controller.image.topics) == {"a", "b"})


def error_codes(reply: dict[str, Any]) -> set[int]:
    """All error codes in a response."""
    codes = {reply["error_code"]} if "error_code" in reply else set()
    for value in reply.values():
        for item in value if isinstance(value, list) else ():
            if isinstance(item, dict):
                codes |= error_codes(item)
    return codes


@cluster_of(3)
async def test_request_without_a_controller_waits_for_the_next(cluster: Cluster) -> None:
    member = cluster.members[3]
    epoch = cluster.leader.controller.controller_epoch
    cluster.leader.store.faults.suspend()
    await cluster.members[1].vanish()
    cluster.network.stop(cluster.members[1].port)
    topics = [{"name": "t", "num_partitions": 1, "replication_factor": 2}]
    waiting = asyncio.ensure_future(
        ask(member, CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 20_000})
    )
    dials = cluster.network.dials
    await until(lambda: cluster.network.dials > dials + 1)
    await cluster.members.pop(1).store.close()
    reply = await waiting
    assert reply["topics"][0]["error_code"] == ErrorCode.NONE
    assert cluster.leader.controller.controller_epoch > epoch


@cluster_of(2)
async def test_request_is_not_forwarded_twice(cluster: Cluster) -> None:
    member = cluster.members[2]
    member.controller.image.controller_id = 2
    # Broker 1 would get the request, and its image has broker 2 as the controller.
    cluster.leader.controller._role.drop()
    member.controller.image.controller_id = 1
    topics = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
    reply = await ask(member, CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 150})
    assert reply["topics"][0]["error_code"] == ErrorCode.NOT_CONTROLLER


@cluster_of(3)
async def test_request_has_an_unknown_outcome_if_the_controller_disconnects(
    cluster: Cluster,
) -> None:
    member = cluster.members[3]
    await member.controller.next_producer_id()
    cluster.network.silent.add((member.port, cluster.members[1].port))
    topics = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
    waiting = asyncio.ensure_future(
        ask(member, CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 20_000})
    )
    await until(lambda: any(link._asked for link in cluster.network.links))
    cluster.network.break_links(cluster.members[1].port)
    reply = await waiting
    assert reply["topics"][0]["error_code"] == ErrorCode.REQUEST_TIMED_OUT


@cluster_of(3)
async def test_broker_creates_topics_through_the_controller(cluster: Cluster) -> None:
    member = cluster.members[2]
    made = await member.controller.create_topic(
        "__consumer_offsets", partitions=3, replication_factor=3, internal=True
    )
    assert member.controller.image.topics["__consumer_offsets"] == made
    await cluster.agree()
    code = await code_of(member.controller.create_topic("__consumer_offsets", internal=True))
    assert code == ErrorCode.TOPIC_ALREADY_EXISTS
    code = await code_of(member.controller.create_topic("x", replication_factor=9))
    assert code == ErrorCode.INVALID_REPLICATION_FACTOR


@cluster_of(2)
async def test_unreachable_controller_is_an_error_for_the_client(cluster: Cluster) -> None:
    member = cluster.members[2]
    cluster.network.silent.add((member.port, cluster.members[1].port))
    try:
        await member.controller.to_controller(ALTER_PARTITION, 3, {"topics": []})
    except LinkBroken:
        return
    raise AssertionError("an answer came over a silent network")


@cluster_of(2)
async def test_failed_write_of_the_controller_is_retried_until_the_timeout(
    cluster: Cluster,
) -> None:
    controller, member = cluster.leader, cluster.members[2]
    topics = [{"name": "t", "num_partitions": 1, "replication_factor": 2}]
    controller.store.faults.suspend()
    late = {"topics": topics, "timeout_ms": 100}
    for asked in (controller, member):
        reply = await ask(asked, CREATE_TOPICS, 7, late)
        assert reply["topics"][0]["error_code"] == ErrorCode.NOT_CONTROLLER
    waiting = [
        asyncio.ensure_future(
            ask(asked, CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 20_000})
        )
        for asked, topic in (
            (controller, topics[0]),
            (member, {**topics[0], "name": "u"}),
        )
    ]
    await asyncio.wait(waiting, timeout=0.1)
    controller.store.faults.resume()
    for reply in await asyncio.gather(*waiting):
        assert reply["topics"][0]["error_code"] == ErrorCode.NONE
