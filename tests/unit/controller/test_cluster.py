"""Several brokers on one store: they see the same, one of them writes, and it can be any."""

from functools import partial
from typing import Any

from headrace.cluster.changes import changed_partitions
from headrace.coordination import layout
from headrace.model.topics import PartitionState
from tests.unit.controller.cluster_scenario import Cluster, cluster_of
from tests.unit.controller.controller_scenario import until


@cluster_of(3)
async def test_every_broker_sees_the_others_and_one_controller(cluster: Cluster) -> None:
    assert cluster.leader.node_id == 1
    for member in cluster.members.values():
        image = member.controller.image
        assert sorted(image.brokers) == [1, 2, 3]
        assert image.brokers[member.node_id].epoch == member.controller.broker_epoch
        assert image.cluster_id == cluster.leader.controller.image.cluster_id
    came = [pair for change in cluster.members[1].changes for pair in change.brokers]
    assert [(before, after and after.node_id) for before, after in came] == [(None, 2), (None, 3)]


@cluster_of(3)
async def test_change_of_the_controller_reaches_every_image_and_listener(cluster: Cluster) -> None:
    controller, other = cluster.leader.controller, cluster.members[3]
    topic = await controller.create_topic("t", partitions=250, replication_factor=3)
    assert {len(state.isr) for state in topic.partitions} == {3}
    assert {state.leader for state in topic.partitions} == {1, 2, 3}
    await cluster.agree()
    assert other.changes[-1].created == (topic,)
    grown = await controller.create_partitions("t", 260)
    await controller.alter_topic_configs("t", {"retention.ms": "5"})
    await controller.alter_broker_configs(None, {"x": "1"})
    await cluster.agree()
    image = other.controller.image
    await until(lambda: image.broker_configs == {None: {"x": "1"}})
    before, after = next(change.changed[0] for change in other.changes if change.changed)
    assert changed_partitions(before, after) == list(range(250, 260))
    assert image.topics["t"].partitions == grown.partitions
    await controller.delete_topic("t")
    await cluster.agree()
    assert image.topics == {}
    assert other.changes[-1].deleted[0].topic_id == topic.topic_id


@cluster_of(0)
async def test_replicas_go_to_different_racks(cluster: Cluster) -> None:
    for node_id, rack in ((1, "a"), (2, "a"), (3, "b"), (4, "b")):
        await cluster.add(node_id, rack)
    topic = await cluster.leader.controller.create_topic("t", partitions=20, replication_factor=2)
    assert all((a in (1, 2)) != (b in (1, 2)) for a, b in (s.replicas for s in topic.partitions))


@cluster_of(3)
async def test_leaderships_of_a_dead_broker_end_in_one_request(cluster: Cluster) -> None:
    controller = cluster.leader.controller
    before = await controller.create_topic("t", partitions=250, replication_factor=3)
    await cluster.agree()
    changes = (await cluster.leader.store.get(layout.CHANGES))[1].version
    await cluster.kill(3)
    await cluster.agree()
    await until(lambda: all(3 not in s.isr for s in controller.image.topics["t"].partitions))
    await cluster.agree()
    assert (await cluster.leader.store.get(layout.CHANGES))[1].version == changes + 1
    for old, new in zip(before.partitions, controller.image.topics["t"].partitions, strict=True):
        was_led_by_it = old.leader == 3
        assert new.leader == (old.replicas[1] if was_led_by_it else old.leader)
        assert new.leader_epoch == was_led_by_it
        assert (new.partition_epoch, len(new.isr)) == (1, 2)


@cluster_of(3)
async def test_new_controller_continues_after_a_dead_one(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", partitions=3, replication_factor=3)
    await cluster.agree()
    await cluster.kill(1)
    await cluster.agree()
    controller = cluster.leader.controller
    assert controller.controller_epoch == 2
    await until(lambda: all(1 not in s.isr for s in controller.image.topics["t"].partitions))
    assert all(s.leader != 1 for s in controller.image.topics["t"].partitions)
    await controller.create_topic("u", replication_factor=2)
    await cluster.agree()
    for member in cluster.members.values():
        assert any(change.has_new_controller for change in member.changes)


@cluster_of(2)
async def test_unclean_restart_removes_a_broker_from_all_isrs_i12(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", replication_factor=2)
    for clean in (False, True):
        epoch = await cluster.kill(2)
        await until(lambda: cluster.leader.state().isr == (1,))
        member = await cluster.add(2, previous_epoch=epoch if clean else -1)
        assert member.controller.broker_epoch > epoch
        assert cluster.leader.state().isr == (1,)


@cluster_of(1)
async def test_registration_contains_the_identity_of_the_data_directory(cluster: Cluster) -> None:
    def lost_until() -> int:
        return cluster.leader.controller.image.brokers[2].lost_until

    first = await add_and_kill(cluster, directory_id="a")
    second = await add_and_kill(cluster, first, directory_id="a")
    # After a power loss the directory is still the last one.
    third = await add_and_kill(cluster, directory_id="a", last_epoch=second)
    assert first < second < third
    await cluster.add(2, directory_id="b")
    assert lost_until() == third
    fourth = await cluster.kill(2)
    await cluster.add(2, previous_epoch=fourth, directory_id="b")
    assert lost_until() == third
    fifth = await cluster.kill(2)
    # An older copy of the same directory.
    await cluster.add(2, previous_epoch=fourth, directory_id="b")
    assert lost_until() == fifth


async def add_and_kill(cluster: Cluster, previous_epoch: int = -1, **origin: Any) -> int:
    await cluster.add(2, previous_epoch=previous_epoch, **origin)
    assert cluster.leader.controller.image.brokers[2].lost_until == -1
    epoch = await cluster.kill(2)
    await cluster.agree()
    return epoch


@cluster_of(2)
async def test_a_broker_that_is_killed_again_and_again_keeps_its_data(cluster: Cluster) -> None:
    """Also if the controller did not act on each of its registrations."""
    first = epoch = await cluster.kill(2)
    await cluster.agree()
    for _ in range(3):
        member = await cluster.add(2, previous_epoch=epoch)
        info = cluster.members[1].controller.image.brokers[2]
        assert (info.previous_epoch, info.kept_since) == (epoch, first)
        assert info.kept(first)
        epoch = member.controller.broker_epoch
        await cluster.kill(2)
        await cluster.agree()
    # After a power loss nothing of this is proven.
    await cluster.add(2, last_epoch=epoch)
    info = cluster.members[1].controller.image.brokers[2]
    assert (info.previous_epoch, info.kept_since) == (-1, -1)
    assert not info.kept(first)


@cluster_of(2)
async def test_the_last_isr_waits_for_its_member(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 1]})
    await cluster.agree()
    await cluster.leader.controller.create_topic("u", assignment={0: [2]})
    epoch = await cluster.kill(2)
    await until(lambda: cluster.leader.state("u").leader == -1)
    assert cluster.leader.state("u") == PartitionState(-1, 1, (2,), (2,), 1, (epoch,))
    assert cluster.leader.state("t").leader == 1
    member = await cluster.add(2, previous_epoch=epoch)
    await until(lambda: cluster.leader.state("u").leader == 2)
    epoch = member.controller.broker_epoch
    assert cluster.leader.state("u") == PartitionState(2, 2, (2,), (2,), 2, (epoch,))
    await cluster.agree()
    assert member.state("u").isr_epochs == (epoch,)


@cluster_of(3)
async def test_broker_with_a_lost_session_registers_again_b7(cluster: Cluster) -> None:
    member = cluster.members[2]
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 3]})
    await cluster.leader.controller.create_topic("u", assignment={0: [2]})
    await cluster.agree()
    epoch = member.controller.broker_epoch
    member.store.faults.suspend()
    await member.store.faults.expire()
    await until(lambda: cluster.leader.state().leader == 3)
    assert member.state().leader == 2
    assert member.losses == 0
    member.store.faults.resume()
    assert member.losses == 1
    assert member.controller.broker_epoch == -1
    member.store.faults.renew()
    await until(lambda: member.controller.broker_epoch > epoch)
    await until(lambda: member.state("u").isr_epochs == (member.controller.broker_epoch,))
    await cluster.agree()
    assert (member.state().leader, member.state().isr) == (3, (3,))
    assert (member.state("u").leader, member.state("u").leader_epoch) == (2, 2)


@cluster_of(3)
async def test_broker_whose_node_was_removed_registers_again(cluster: Cluster) -> None:
    member = cluster.members[2]
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 3]})
    epoch = member.controller.broker_epoch
    await cluster.leader.store.delete(layout.broker_path(2))
    await until(lambda: member.controller.broker_epoch > epoch)
    assert member.losses == 1
    await cluster.agree()


@cluster_of(3)
async def test_controller_whose_node_was_removed_notices_a_dead_broker(cluster: Cluster) -> None:
    """Its session is valid, so it remains the controller, and no election follows."""
    leader = cluster.leader
    epoch = leader.controller.broker_epoch
    await leader.store.delete(layout.broker_path(leader.node_id))
    await until(lambda: leader.controller.broker_epoch > epoch)
    await cluster.agree()
    assert cluster.leader is leader
    await leader.controller.create_topic("t", assignment={0: [2, 3]})
    await cluster.crash(2)
    await until(lambda: leader.state().leader == 3)


@cluster_of(3)
async def test_after_a_reconnect_within_its_session_a_broker_reads_again(
    cluster: Cluster,
) -> None:
    member = cluster.members[3]
    epoch = member.controller.broker_epoch
    member.store.faults.suspend()
    await cluster.leader.controller.create_topic("t", partitions=2, replication_factor=3)
    assert member.controller.image.topics == {}
    member.store.faults.resume()
    await cluster.agree()
    assert "t" in member.controller.image.topics
    assert (member.losses, member.controller.broker_epoch) == (0, epoch)
    await cluster.leader.controller.create_topic("u")
    await cluster.agree()


@cluster_of(2)
async def test_a_broker_that_missed_too_many_changes_reads_everything(cluster: Cluster) -> None:
    controller, member = cluster.leader.controller, cluster.members[2]
    await controller.create_topic("t")
    await cluster.agree()
    member.store.faults.suspend()
    for turn in range(layout.CHANGE_ROWS_MAX + 5):
        await controller.alter_topic_configs("t", {"x": str(turn)})
    await controller.create_topic("u")
    member.store.faults.resume()
    await cluster.agree()


@cluster_of(2)
async def test_topic_recreated_during_an_outage_of_a_broker_has_its_new_id(
    cluster: Cluster,
) -> None:
    controller, member = cluster.leader.controller, cluster.members[2]
    first = await controller.create_topic("t", replication_factor=2)
    await cluster.agree()
    member.store.faults.suspend()
    await controller.delete_topic("t")
    second = await controller.create_topic("t", replication_factor=2)
    member.store.faults.resume()
    await cluster.agree()
    change = next(change for change in member.changes if change.deleted)
    assert (change.deleted, change.created) == ((first,), (second,))


@cluster_of(3)
async def test_elections_of_unknown_outcome_are_read_again_b5(cluster: Cluster) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [3, 2, 1]})
    for applied in (True, False):
        await cluster.agree()
        epoch = cluster.leader.state().leader_epoch
        cluster.leader.store.faults.leave_next_outcome_unknown(applied=applied)
        await cluster.kill(cluster.leader.state().leader)
        await until(partial(_is_beyond, cluster, epoch))
        assert cluster.leader.state().leader_epoch == epoch + 1
        await cluster.agree()
    assert cluster.leader.state().isr == (1,)


def _is_beyond(cluster: Cluster, leader_epoch: int) -> bool:
    return cluster.leader.state().leader_epoch > leader_epoch
