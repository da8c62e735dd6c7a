"""Failure detection by refused connections and silence, also of brokers that are alive."""

from dataclasses import replace

from headrace.cluster.failure_detection.liveness_machine import Liveness
from headrace.coordination import layout
from headrace.model.cluster import BrokerInfo
from headrace.model.errors import ErrorCode
from tests.unit.controller.cluster_scenario import Cluster, Member, cluster_of
from tests.unit.controller.controller_scenario import code_of, until
from tests.unit.controller.test_requests import alter


@cluster_of(3)
async def test_dead_broker_is_replaced_before_session_expiry(
    cluster: Cluster,
) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [3, 2]})
    await cluster.agree()
    session = await cluster.crash(3)
    await until(lambda: cluster.leader.state().leader == 2)
    await cluster.agree()
    assert await cluster.leader.store.exists(layout.broker_path(3)) is None
    # The node of the former incarnation is deleted, so the next one is live immediately.
    member = await cluster.add(3)
    await until(lambda: 3 in cluster.leader.controller._failover.live())
    assert (await alter(cluster, cluster.members[2], (2, 3)))["isr"] == [2, 3]
    session.faults.resume()
    await session.close()
    await cluster.agree()
    assert member.losses == 0


@cluster_of(3)
async def test_dead_controller_is_replaced_before_session_expiry(
    cluster: Cluster,
) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [1, 3, 2]})
    await cluster.agree()
    await cluster.crash(1)
    await until(lambda: any(m.controller.is_controller for m in cluster.members.values()))
    assert cluster.leader.controller.controller_epoch == 2
    await until(lambda: cluster.leader.state().leader == 3)
    await cluster.agree()
    assert await cluster.leader.store.exists(layout.broker_path(1)) is None


@cluster_of(3)
async def test_newer_registration_is_not_removed_b9(cluster: Cluster) -> None:
    """The broker restarts between the second refusal and the removal."""
    controller = cluster.leader.controller
    before = controller.image.brokers[3]
    await cluster.kill(3)
    member = await cluster.add(3)
    controller._failure_detector._remove(before)
    await until(lambda: not controller._failure_detector._removals)
    assert 3 in controller.image.brokers
    assert member.losses == 0


@cluster_of(3)
async def test_broker_that_only_the_controller_cannot_reach_is_removed_once(
    cluster: Cluster,
) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [3, 2]})
    await cluster.agree()
    member = cluster.members[3]
    before = member.controller.broker_epoch
    cluster.network.refused.add((cluster.leader.port, member.port))
    cluster.network.break_links(member.port)
    await until(lambda: cluster.leader.state().leader == 2)
    await until(lambda: before != member.controller.broker_epoch in _epochs(cluster))
    assert member.losses == 1
    dials = cluster.network.dials
    await until(lambda: cluster.network.dials > dials + 6)
    # It is registered, and left alone, but it is in no ISR while the controller cannot reach it.
    assert member.losses == 1
    await cluster.agree()
    leader = cluster.members[2]
    refusal = await alter(cluster, leader, (2, 3))
    assert refusal["error_code"] == ErrorCode.INELIGIBLE_REPLICA
    cluster.network.refused.clear()
    await until(lambda: 3 in cluster.leader.controller._failover.live())
    await cluster.agree()
    assert (await alter(cluster, leader, (2, 3)))["isr"] == [2, 3]


def _epochs(cluster: Cluster) -> list[int]:
    return [info.epoch for info in cluster.leader.controller.image.brokers.values()]


@cluster_of(3)
async def test_unreachable_live_controller_is_replaced_and_registers_again(
    cluster: Cluster,
) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [1, 3]})
    await cluster.agree()
    former = cluster.leader
    for member in cluster.members.values():
        cluster.network.refused.add((member.port, former.port))
    cluster.network.break_links(former.port)
    await until(lambda: not former.controller.is_controller)
    await until(lambda: any(m.controller.is_controller for m in cluster.members.values()))
    await until(lambda: cluster.leader.state().leader == 3)
    await until(lambda: former.losses == 1 and former.controller.broker_epoch != -1)
    await cluster.agree()
    assert former.losses == 1


@cluster_of(3, silence_s=0.3)
async def test_silent_broker_loses_its_leaderships_until_it_responds(
    cluster: Cluster,
) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [3, 2]})
    await cluster.agree()
    silence = (cluster.leader.port, cluster.members[3].port)
    cluster.network.silent.add(silence)
    await until(lambda: cluster.leader.state().leader == 2)
    await cluster.agree()
    assert cluster.members[3].losses == 0
    assert cluster.leader.state().isr == (2,)
    cluster.network.silent.clear()
    await until(lambda: 3 in cluster.leader.controller._failover.live())
    assert (await alter(cluster, cluster.members[2], (2, 3)))["isr"] == [2, 3]


@cluster_of(3, silence_s=0.3)
async def test_controller_resigns_when_most_brokers_are_silent(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [3, 2]})
    await cluster.agree()
    former = cluster.leader
    for node_id in (2, 3):
        port = cluster.members[node_id].port
        cluster.network.silent |= {(former.port, port), (port, former.port)}
    await until(lambda: former.controller.image.controller_id in (2, 3))
    assert not former.controller.is_controller
    # It is the controller once it has read everything under its epoch.
    await until(lambda: any(m.controller.is_controller for m in cluster.members.values()))
    await until(lambda: 1 not in cluster.leader.controller._failover.live())
    assert (cluster.leader.state().leader, cluster.leader.state().isr) == (3, (3, 2))
    cluster.network.silent.clear()
    await cluster.agree()


@cluster_of(3)
async def test_former_controller_that_is_cut_off_loses_its_partitions_before_silence_s(
    cluster: Cluster,
) -> None:
    """`silence_s` is longer than this test may take."""
    await cluster.leader.controller.create_topic("t", assignment={0: [1, 3, 2]})
    await cluster.agree()
    former = cluster.leader
    for node_id in (2, 3):
        port = cluster.members[node_id].port
        cluster.network.silent |= {(former.port, port), (port, former.port)}
    cluster.network.break_links(former.port)
    former.controller._registration.resign()
    await until(lambda: former.controller.image.controller_id in (2, 3))
    await until(lambda: cluster.members[2].state().leader == 3)
    assert cluster.members[2].state().isr == (3, 2)
    cluster.network.silent.clear()
    await cluster.agree()


@cluster_of(3)
async def test_silent_broker_is_not_elected(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic(
        "t", assignment={0: [2, 3, 1]}, configs={"min.insync.replicas": "2"}
    )
    await cluster.agree()
    cluster.network.silent.add((cluster.leader.port, cluster.members[3].port))
    slot = await alter(cluster, cluster.members[2], (2,))
    assert slot["error_code"] == ErrorCode.FENCED_LEADER_EPOCH
    assert cluster.leader.state().leader == 1


@cluster_of(4)
async def test_leader_that_resigns_is_replaced_by_a_member_that_responds(cluster: Cluster) -> None:
    assert cluster.leader.node_id == 1
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 3, 4]})
    await cluster.agree()
    silence = {(cluster.leader.port, cluster.members[each].port) for each in (3, 4)}
    cluster.network.silent |= silence
    before = cluster.leader.state()
    slot = await alter(cluster, cluster.members[2], (3, 4))
    assert slot["error_code"] == ErrorCode.INELIGIBLE_REPLICA
    await cluster.agree()
    cluster.network.silent.clear()
    cluster.network.silent.add((cluster.leader.port, cluster.members[3].port))
    slot = await alter(cluster, cluster.members[2], (3, 4))
    assert (slot["leader_id"], slot["isr"]) == (4, [3, 4])
    after = cluster.leader.state()
    assert (after.leader, after.isr, after.leader_epoch) == (4, (3, 4), before.leader_epoch + 1)


def info(epoch: int, previous_epoch: int = -1) -> BrokerInfo:
    return BrokerInfo(2, (), None, epoch, previous_epoch)


def test_wrong_removals_delay_readmission_increasingly_and_a_crash_does_not() -> None:
    liveness = Liveness(1)
    liveness.start_as_controller({2: info(10)})
    assert liveness.is_admitted(2, 10)
    assert liveness.responded(info(10), 0.0)
    now = 0.0
    for epoch, wait_s in ((11, 1.0), (12, 2.0), (13, 4.0), (14, 8.0)):
        liveness.mark_dead(2, epoch - 1)
        back = info(epoch, previous_epoch=epoch - 1)
        assert not liveness.responded(back, now)
        assert not liveness.responded(back, now + wait_s - 0.1)
        assert not liveness.live({2: back})
        now += wait_s
        assert liveness.responded(back, now)
        assert liveness.is_admitted(2, epoch)
    liveness.mark_dead(2, 14)
    assert liveness.responded(info(15), now)
    liveness.mark_dead(2, 15)
    late = info(16, previous_epoch=15)
    assert not liveness.responded(late, now + 1000)
    assert liveness.responded(late, now + 1001)


def test_a_killed_broker_that_kept_its_data_is_admitted_immediately() -> None:
    liveness = Liveness(1)
    liveness.start_as_controller({2: info(10)})
    for epoch in range(10, 20):
        liveness.mark_dead(2, epoch)
        back = replace(info(epoch + 1, previous_epoch=epoch), is_restarted=True)
        assert liveness.responded(back, 0.0)


def test_broker_after_a_clean_restart_is_admitted_immediately() -> None:
    liveness = Liveness(1)
    liveness.start_as_controller({2: info(10)})
    liveness.mark_stopping(2, 10)
    liveness.mark_dead(2, 10)
    back = info(11, previous_epoch=10)
    assert liveness.responded(back, 0.0)
    liveness.mark_dead(2, 11)
    assert not liveness.responded(info(12, previous_epoch=11), 1.0)


def test_new_controller_considers_all_brokers_live_and_later_ones_must_respond() -> None:
    liveness = Liveness(1)
    liveness.start_as_controller({1: info(5), 2: info(10)})
    assert sorted(liveness.live({1: info(6), 2: info(10), 3: info(7)})) == [1, 2]
    liveness.mark_stopping(2, 10)
    assert liveness.live({2: info(10)})[2].is_stopping
    liveness.start_as_controller({2: info(10)})
    assert not liveness.live({2: info(10)})[2].is_stopping


def test_controller_without_responses_of_most_brokers_might_be_cut_off() -> None:
    liveness = Liveness(1)
    brokers = {node: BrokerInfo(node, (), None, node) for node in range(1, 4)}
    liveness.start_as_controller(brokers)
    assert not liveness.half_responded(brokers, 0.0), (
        "a new controller has received no response yet"
    )
    liveness.responded(brokers[2], 5.0)
    assert liveness.half_responded(brokers, 5.0)
    assert not liveness.half_responded(brokers, 6.0)
    assert liveness.half_responded({1: brokers[1]}, 6.0), "the cluster has one broker"


def test_controller_resigns_if_more_than_half_of_the_others_are_silent() -> None:
    liveness = Liveness(1)
    brokers = {node: BrokerInfo(node, (), None, node) for node in range(1, 6)}
    for node in (2, 3):
        liveness.mark_silent(node, node)
    assert liveness.silent(brokers) == [brokers[2], brokers[3]]
    liveness.mark_silent(4, 4)
    assert liveness.silent(brokers) is None
    liveness.responded(brokers[4], 0.0)
    assert liveness.silent(brokers) == [brokers[2], brokers[3]]


@cluster_of(2)
async def test_brokers_that_restart_all_together_do_not_wait_for_their_former_sessions_b9(
    cluster: Cluster,
) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [1, 2]})
    await cluster.agree()
    sessions = [await cluster.crash(node_id) for node_id in (1, 2)]
    members = [
        Member(cluster.server, cluster.network, node, None, 30.0, port=9190 + node)
        for node in (1, 2)
    ]
    for member in members:
        cluster.members[member.node_id] = member
        await member.start()
    await cluster.agree()
    assert cluster.leader.controller.controller_epoch == 2
    for session in sessions:
        session.faults.resume()
        await session.close()
    await cluster.agree()
    assert [member.losses for member in members] == [0, 0]


@cluster_of(2)
async def test_broker_with_a_used_id_is_rejected_while_the_registered_one_responds(
    cluster: Cluster,
) -> None:
    twin = Member(cluster.server, cluster.network, 2, None, 30.0)
    twin.controller._registration._registration_wait_s = 0.05
    cluster.network.serve(9999, twin.controller)
    twin.port = 9999
    assert await code_of(twin.start()) == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    await cluster.agree()
    assert cluster.members[2].losses == 0


@cluster_of(2)
async def test_stopped_broker_probes_no_broker(cluster: Cluster) -> None:
    """The end of its session was news to it, upon which it dialled the controller again."""
    member = cluster.members.pop(2)
    await member.controller.stop()
    await member.store.close()
    assert member.losses == 1
    assert not member.controller._failure_detector._probes._watches
