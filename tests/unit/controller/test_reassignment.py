"""Elections and moves that administrators ask for, through any broker."""

from typing import Any

from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import (
    ALTER_PARTITION_REASSIGNMENTS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
)
from tests.unit.controller.cluster_scenario import Cluster, cluster_of
from tests.unit.controller.controller_scenario import until
from tests.unit.controller.test_requests import alter, ask

T0 = TopicPartition("t", 0)


@cluster_of(3)
async def test_preferred_replicas_are_elected_on_request(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [3, 2], 1: [2, 3]})
    epoch = await cluster.kill(3)
    await until(lambda: cluster.leader.state().leader == 2)
    await cluster.add(3, previous_epoch=epoch)
    partitions = [{"topic": "t", "partitions": [0, 1, 7]}]
    asked = {"election_type": 0, "topic_partitions": partitions, "timeout_ms": 5000}
    reply = await ask(cluster.members[2], ELECT_LEADERS, 2, asked)
    codes = [
        part["error_code"] for part in reply["replica_election_results"][0]["partition_result"]
    ]
    assert codes == [
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    await until(lambda: 3 in cluster.leader.controller._failover.live())
    await alter(cluster, cluster.members[2], (2, 3))
    reply = await ask(cluster.members[2], ELECT_LEADERS, 2, asked | {"topic_partitions": None})
    assert [topic["topic"] for topic in reply["replica_election_results"]] == ["t"]
    assert cluster.members[2].state().leader == 3
    assert cluster.members[2].state().leader_epoch == 2


@cluster_of(3)
async def test_leaders_are_balanced_above_the_imbalance_limit(cluster: Cluster) -> None:
    assignment = {index: [3, 2] for index in range(10)}
    controller = cluster.leader.controller
    await controller.create_topic("t", assignment=assignment)
    await cluster.agree()
    assert await controller._reassignments.balance(0.1) == 0
    state = cluster.leader.state()
    moved = await controller.reassign_partitions({T0: [2, 3]})
    assert moved == {T0: None}
    # The preferred replica of one is another now: one of ten is just as much as may be.
    assert cluster.leader.state().replicas == (2, 3)
    assert cluster.leader.state().leader == state.leader == 3
    assert await controller._reassignments.balance(0.1) == 1
    assert cluster.leader.state().leader == 2


@cluster_of(0)
async def test_preferred_replicas_are_elected_automatically(cluster: Cluster) -> None:
    cluster.balance_interval_s = 0.05
    for node_id in (1, 2):
        await cluster.add(node_id)
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 1]})
    await cluster.leader.controller.reassign_partitions({T0: [1, 2]})
    await until(lambda: cluster.leader.state().leader == 1)
    await cluster.agree()


@cluster_of(0)
async def test_lower_imbalance_limit_balances_earlier(cluster: Cluster) -> None:
    cluster.balance_interval_s, cluster.imbalance_max = 0.05, 0.05
    for node_id in (1, 2):
        await cluster.add(node_id)
    controller = cluster.leader.controller
    others = {index: [1, 2] for index in range(1, 10)}
    await controller.create_topic("t", assignment={0: [2, 1], **others})
    await controller.reassign_partitions({T0: [1, 2]})
    await until(lambda: cluster.leader.state().leader == 1)
    await cluster.agree()


@cluster_of(4)
async def test_reassignment_completes_when_new_replicas_are_in_sync(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 3]})
    await cluster.agree()
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [4, 3]}]}]
    reply = await ask(
        cluster.members[3],
        ALTER_PARTITION_REASSIGNMENTS,
        1,
        {"topics": topics, "timeout_ms": 5000, "allow_replication_factor_change": False},
    )
    assert reply["responses"][0]["partitions"][0]["error_code"] == ErrorCode.NONE
    member = cluster.members[3]
    assert (member.state().replicas, member.state().isr) == ((4, 2, 3), (2, 3))
    await cluster.agree()
    await alter(cluster, cluster.members[2], (2, 3, 4))
    await until(lambda: member.state().replicas == (4, 3))
    state = member.state()
    assert (state.leader, state.isr, state.adding, state.removing) == (4, (3, 4), (), ())
    assert state.leader_epoch == 1
    await cluster.agree()


@cluster_of(4)
async def test_reassignment_survives_its_controller_and_can_be_cancelled(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 3], 1: [3, 2]})
    targets = {T0: [4, 3], TopicPartition("t", 1): [3, 4]}
    await cluster.leader.controller.reassign_partitions(targets)
    await cluster.agree()
    await cluster.kill(1)
    await cluster.agree()
    controller = cluster.leader.controller
    outcomes = await controller.reassign_partitions({T0: None})
    assert outcomes == {T0: None}
    assert cluster.leader.state().replicas == (2, 3)
    outcomes = await controller.reassign_partitions({T0: None})
    error = outcomes[T0]
    assert error is not None
    assert error.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert cluster.leader.state("t", 1).adding == (4,)
    await controller.delete_topic("t")
    await cluster.agree()


@cluster_of(3)
async def test_replication_factor_changes_only_if_allowed(cluster: Cluster) -> None:
    controller = cluster.leader.controller
    await controller.create_topic("t", assignment={0: [2]})
    outcomes = await controller.reassign_partitions({T0: [2, 3]}, keeps_factor=True)
    error = outcomes[T0]
    assert error is not None
    assert error.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert await controller.reassign_partitions({T0: [2, 3]}) == {T0: None}
    await cluster.agree()
    assert cluster.leader.state().adding == (3,)
    reply = await _listed(cluster)
    assert reply["topics"][0]["partitions"] == [
        {
            "partition_index": 0,
            "replicas": [2, 3],
            "adding_replicas": [3],
            "removing_replicas": [],
        }
    ]
    await alter(cluster, cluster.members[2], (2, 3))
    await until(lambda: cluster.leader.state().adding == ())
    assert await controller.reassign_partitions({T0: [3]}) == {T0: None}
    await until(lambda: cluster.leader.state().replicas == (3,))
    assert (cluster.leader.state().leader, cluster.leader.state().isr) == (3, (3,))
    assert (await _listed(cluster))["topics"] == []


async def _listed(cluster: Cluster) -> dict[str, Any]:
    body = {"timeout_ms": 1000, "topics": None}
    return await ask(cluster.leader, LIST_PARTITION_REASSIGNMENTS, 0, body)
