"""Elections after an outage: from the ISR, from the ELR, and by comparing logs."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from headrace.cluster.changes import ImageChange
from headrace.log.epochs import EpochCache
from headrace.model.topics import NO_LEADER, TopicPartition
from tests.unit.controller.cluster_scenario import Cluster, cluster_of
from tests.unit.controller.controller_scenario import until


@dataclass
class FakeLog:
    log_end_offset: int
    epochs: EpochCache = field(default_factory=EpochCache)
    is_offline: bool = False


@dataclass
class FakePartition:
    log: FakeLog


def give_log(
    cluster: Cluster, node_id: int, last_epoch: int, end_offset: int, start_offset: int = 0
) -> None:
    """A log whose last epoch begins at `start_offset`; below it are records of epoch 0."""
    log = FakeLog(end_offset)
    if start_offset:
        log.epochs.assign(0, 0)
    log.epochs.assign(last_epoch, start_offset)
    partitions = cluster.members[node_id].broker.partitions
    partitions["t"] = {0: cast(Any, FakePartition(log))}


async def crash(cluster: Cluster, *node_ids: int) -> None:
    """Kill these brokers simultaneously."""
    for node_id in node_ids:
        cluster.members[node_id].store.faults.suspend()
    for node_id in node_ids:
        await cluster.kill(node_id)


async def start_over(cluster: Cluster, logs: dict[int, tuple[int, int]], isr: list[int]) -> None:
    """A topic with this ISR, of which every broker but 1 crashes; those with a log come back."""
    await cluster.leader.controller.create_topic("t", assignment={0: isr})
    await cluster.agree()
    cluster.leader.store.faults.suspend()
    await crash(cluster, *isr)
    cluster.leader.store.faults.resume()
    await cluster.agree()
    await until(lambda: cluster.leader.state().leader == NO_LEADER)
    assert cluster.leader.state().isr == tuple(isr)
    for node_id, (last_epoch, end_offset) in logs.items():
        await cluster.add(node_id)
        give_log(cluster, node_id, last_epoch, end_offset)


@cluster_of(4)
async def test_log_with_the_greatest_epoch_and_end_of_a_complete_isr_leads_i12(
    cluster: Cluster,
) -> None:
    await start_over(cluster, {2: (3, 90), 3: (5, 10), 4: (5, 12)}, [2, 3, 4])
    await until(lambda: cluster.leader.state().leader == 4)
    state = cluster.leader.state()
    assert state.isr == (4,)
    assert state.isr_epochs == (cluster.members[4].controller.broker_epoch,)
    assert state.leader_epoch == 2


@cluster_of(3)
async def test_partition_waits_for_a_missing_member_without_limit(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await start_over(cluster, {2: (3, 90)}, [2, 3])
    await until(lambda: "waiting for brokers: brokers=3 partitions=1 first=t-0" in caplog.text)
    # Other brokers that come and go change nothing.
    for _ in range(3):
        await cluster.add(4)
        await cluster.kill(4)
        await cluster.agree()
    assert cluster.leader.state().leader == NO_LEADER
    assert caplog.text.count("waiting for brokers: brokers=3 ") == 1
    await cluster.add(3)
    give_log(cluster, 3, 3, 80)
    await until(lambda: cluster.leader.state().leader == 2)
    assert cluster.leader.state().elr == ()


@cluster_of(3)
async def test_a_wiped_member_does_not_lead_before_a_complete_one_returns(
    cluster: Cluster,
) -> None:
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 3]})
    await cluster.agree()
    epoch = cluster.members[3].controller.broker_epoch
    cluster.leader.store.faults.suspend()
    await crash(cluster, 2, 3)
    cluster.leader.store.faults.resume()
    await until(lambda: cluster.leader.state().leader == NO_LEADER)
    await cluster.add(2)
    give_log(cluster, 2, -1, 0)
    await cluster.agree()
    assert cluster.leader.state().leader == NO_LEADER
    # Broker 3 was only killed. It becomes leader without a comparison with the other log.
    member = await cluster.add(3, previous_epoch=epoch)
    await until(lambda: cluster.leader.state().leader == 3)
    assert cluster.leader.state().isr_epochs == (member.controller.broker_epoch,)


@cluster_of(3)
async def test_silent_member_might_have_the_longest_log(cluster: Cluster) -> None:
    await start_over(cluster, {2: (3, 90)}, [2, 3])
    one, three = cluster.leader.port, 9093
    cluster.network.silent.add((one, three))
    await cluster.add(3)
    give_log(cluster, 3, 4, 10)
    dials = cluster.network.dials
    await until(lambda: cluster.network.dials > dials + 1)
    assert cluster.leader.state().leader == NO_LEADER
    cluster.network.silent.clear()
    await until(lambda: cluster.leader.state().leader == 3)


async def shrink_to_last(cluster: Cluster, min_insync: int) -> dict[int, int]:
    """Kill brokers 2, 3 and 4 of a topic one after another; return their epochs."""
    configs = {"min.insync.replicas": str(min_insync)}
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 3, 4]}, configs=configs)
    await cluster.agree()
    epochs = {}
    for node_id in (2, 3, 4):
        epochs[node_id] = await cluster.kill(node_id)
        await cluster.agree()
    await until(lambda: cluster.leader.state().leader == NO_LEADER)
    assert cluster.leader.state().isr == (4,)
    return epochs


@cluster_of(4)
async def test_an_eligible_replica_with_proof_leads_before_the_last_isr_is_back(
    cluster: Cluster,
) -> None:
    epochs = await shrink_to_last(cluster, min_insync=2)
    assert cluster.leader.state().elr == ((3, epochs[3]),)
    # Broker 2 left an ISR of two, which could commit without it.
    await cluster.add(2, previous_epoch=epochs[2])
    assert cluster.leader.state().leader == NO_LEADER
    member = await cluster.add(3, previous_epoch=epochs[3])
    await until(lambda: cluster.leader.state().leader == 3)
    state = cluster.leader.state()
    assert state.isr_epochs == (member.controller.broker_epoch,)
    assert state.elr == ((4, epochs[4]),)
    # And again from the ELR, after the other has left.
    epoch = await cluster.kill(3)
    await until(lambda: cluster.leader.state().leader == NO_LEADER)
    await cluster.add(4, previous_epoch=epochs[4])
    await until(lambda: cluster.leader.state().leader == 4)
    assert cluster.leader.state().elr == ((3, epoch),)


@cluster_of(4)
async def test_all_of_isr_and_elr_are_compared_if_none_kept_its_data(cluster: Cluster) -> None:
    epochs = await shrink_to_last(cluster, min_insync=2)
    await cluster.add(4)
    give_log(cluster, 4, 3, 50)
    await cluster.add(2)
    give_log(cluster, 2, 3, 90)
    await cluster.agree()
    assert cluster.leader.state().leader == NO_LEADER
    await cluster.add(3)
    give_log(cluster, 3, 3, 70)
    # Broker 2 is not a member, and has all records of the furthest one.
    await until(lambda: cluster.leader.state().leader == 2)
    assert cluster.leader.state().isr == (2,)
    assert cluster.leader.state().elr == cluster.leader.state().last_known_elr == ()
    assert epochs


@cluster_of(4)
async def test_an_eligible_replica_that_lost_data_is_only_last_known(cluster: Cluster) -> None:
    epochs = await shrink_to_last(cluster, min_insync=2)
    await cluster.add(3)
    give_log(cluster, 3, 3, 70)
    await until(lambda: cluster.leader.state().last_known_elr == ((3, epochs[3]),))
    assert cluster.leader.state().elr == ()
    assert cluster.leader.state().leader == NO_LEADER
    await cluster.add(4, previous_epoch=epochs[4])
    await until(lambda: cluster.leader.state().leader == 4)
    assert cluster.leader.state().last_known_elr == ((3, epochs[3]),)


@cluster_of(4)
async def test_lowering_min_insync_replicas_clears_the_elr(cluster: Cluster) -> None:
    await shrink_to_last(cluster, min_insync=2)
    controller = cluster.leader.controller
    await controller.alter_topic_configs("t", {"min.insync.replicas": "1"})
    await until(lambda: cluster.leader.state().elr == ())


@cluster_of(2)
async def test_changed_broker_settings_are_applied_to_partitions(cluster: Cluster) -> None:
    """They can lower min.insync.replicas, which clears the ELR."""
    failover = cluster.leader.controller._failover
    runs: list[object] = []
    failover.run_soon = lambda topics=None: runs.append(topics)  # type: ignore[method-assign]
    cluster.leader.controller._changed(ImageChange(broker_configs=(None,)))
    assert runs == [None]


@cluster_of(4)
async def test_last_isr_with_enough_members_waits_for_no_other_broker(
    cluster: Cluster,
) -> None:
    await shrink_to_last(cluster, min_insync=1)
    await cluster.add(4)
    await until(lambda: cluster.leader.state().leader == 4)
    await cluster.kill(4)
    await until(lambda: cluster.leader.state().leader == NO_LEADER)
    await cluster.add(2)
    give_log(cluster, 2, 3, 90)
    await cluster.add(4)
    give_log(cluster, 4, 3, 50)
    await until(lambda: cluster.leader.state().leader == 2)


@cluster_of(4)
async def test_last_isr_member_beats_log_with_later_uncommitted_epoch(cluster: Cluster) -> None:
    """Its leader committed records of epoch 0 in epoch 2, without one of epoch 2. Another replica
    has records of epoch 1 at those offsets, which were never committed.
    """
    await shrink_to_last(cluster, min_insync=1)
    await cluster.add(2)
    give_log(cluster, 2, 1, 59, start_offset=53)
    await cluster.add(4)
    give_log(cluster, 4, 0, 56)
    await until(lambda: cluster.leader.state().leader == 4)


async def add_logs_of_90_and_95(cluster: Cluster, min_insync: int) -> None:
    """Restart brokers 2 and 3, with 90 and 95 records; the last ISR member stays dead."""
    await shrink_to_last(cluster, min_insync)
    for node_id, end in ((2, 90), (3, 95)):
        await cluster.add(node_id)
        give_log(cluster, node_id, 3, end)
    await cluster.agree()
    assert cluster.leader.state().leader == NO_LEADER


@cluster_of(4)
async def test_operator_elects_the_longest_log_of_live_replicas(cluster: Cluster) -> None:
    await add_logs_of_90_and_95(cluster, min_insync=2)
    partition = TopicPartition("t", 0)
    elect = cluster.leader.controller.elect_leaders
    outcomes = await elect([partition])
    assert outcomes[partition] is not None
    assert await elect([partition], is_unclean=True) == {partition: None}
    state = cluster.leader.state()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (3, (3,), (), ())
    # The member that was away is an ordinary follower when it returns.
    await cluster.add(4)
    await cluster.agree()
    assert cluster.leader.state().leader == 3


@cluster_of(3)
async def test_unclean_election_is_for_topics_that_allow_it(cluster: Cluster) -> None:
    controller = cluster.leader.controller
    await controller.create_topic("t", assignment={0: [3, 2]})
    allowed = {"unclean.leader.election.enable": "true"}
    await controller.create_topic("u", assignment={0: [3, 2]}, configs=allowed)
    await cluster.agree()
    await cluster.kill(2)
    await until(lambda: cluster.leader.state().isr == (3,))
    await cluster.kill(3)
    await until(lambda: cluster.leader.state().leader == NO_LEADER)
    await cluster.add(2)
    await until(lambda: cluster.leader.state("u").leader == 2)
    assert cluster.leader.state("u").isr == (2,)
    assert cluster.leader.state("t").leader == NO_LEADER
    await controller.alter_topic_configs("t", allowed)
    await until(lambda: cluster.leader.state("t").leader == 2)


@cluster_of(4)
async def test_an_automatic_unclean_election_takes_the_longest_log(cluster: Cluster) -> None:
    await add_logs_of_90_and_95(cluster, min_insync=1)
    allowed = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    await cluster.leader.controller.alter_topic_configs("t", allowed)
    await until(lambda: cluster.leader.state().leader != NO_LEADER)
    assert (cluster.leader.state().leader, cluster.leader.state().isr) == (3, (3,))
