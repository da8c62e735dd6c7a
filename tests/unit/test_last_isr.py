"""Whole ISRs that restart uncleanly: the controller waits, asks, and elects the furthest log."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from headrace.controller import last_isr
from headrace.log.epochs import EpochCache
from headrace.model.topics import NO_LEADER
from tests.unit.cluster_scenario import Cluster, cluster_of
from tests.unit.controller_scenario import until


@dataclass
class FakeLog:
    log_end_offset: int
    epochs: EpochCache = field(default_factory=EpochCache)


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
    """Kill these, all at one moment."""
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
async def test_the_greatest_epoch_and_end_of_a_whole_isr_leads_i12(cluster: Cluster) -> None:
    await start_over(cluster, {2: (3, 90), 3: (5, 10), 4: (5, 12)}, [2, 3, 4])
    await until(lambda: cluster.leader.state().leader == 4)
    state = cluster.leader.state()
    assert state.isr == (4,)
    assert state.isr_epochs == (cluster.members[4].controller.broker_epoch,)
    assert state.leader_epoch == 2


@cluster_of(3)
async def test_one_that_stays_away_is_waited_for_and_then_left_behind(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start_over(cluster, {2: (3, 90)}, [2, 3])
    dials = cluster.network.dials
    assert cluster.leader.state().leader == NO_LEADER
    monkeypatch.setattr(last_isr, "WAIT_S", 0.0)
    await until(lambda: cluster.leader.state().leader == 2)
    assert cluster.network.dials > dials


@cluster_of(3)
async def test_one_that_is_silent_may_have_the_longest_log(cluster: Cluster) -> None:
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


async def shrink_to_last(cluster: Cluster, min_insync: int) -> None:
    """A topic of brokers 2, 3 and 4, of which 4 is the last in sync when all of them are gone."""
    configs = {"min.insync.replicas": str(min_insync)}
    await cluster.leader.controller.create_topic("t", assignment={0: [2, 3, 4]}, configs=configs)
    await cluster.agree()
    for node_id in (2, 3, 4):
        await cluster.kill(node_id)
        await cluster.agree()
    await until(lambda: cluster.leader.state().leader == NO_LEADER)
    assert cluster.leader.state().isr == (4,)


@cluster_of(4)
async def test_the_last_of_too_few_in_sync_is_compared_with_those_that_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_isr, "WAIT_S", 60.0)
    await shrink_to_last(cluster, min_insync=2)
    await cluster.add(4)
    give_log(cluster, 4, 3, 50)
    await cluster.add(2)
    give_log(cluster, 2, 3, 90)
    assert cluster.leader.state().leader == NO_LEADER
    await cluster.add(3)
    give_log(cluster, 3, 2, 200)
    await until(lambda: cluster.leader.state().leader == 2)
    assert cluster.leader.state().isr == (2,)


@cluster_of(4)
async def test_the_last_of_enough_in_sync_waits_for_nobody_but_hears_who_is_there(
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
async def test_what_was_in_sync_is_kept_from_a_later_epoch_that_never_was(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader committed records of epoch 0 in epoch 2, of which it has none; another has some of
    epoch 1 in their place.
    """
    monkeypatch.setattr(last_isr, "WAIT_S", 60.0)
    await shrink_to_last(cluster, min_insync=2)
    for node_id in (2, 3):
        await cluster.add(node_id)
        give_log(cluster, node_id, 1, 59, start_offset=53)
    await cluster.add(4)
    give_log(cluster, 4, 0, 56)
    await until(lambda: cluster.leader.state().leader == 4)


@cluster_of(4)
async def test_those_that_left_lead_nothing_before_the_last_in_sync_is_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shrink_to_last(cluster, min_insync=2)
    monkeypatch.setattr(last_isr, "WAIT_S", 0.0)
    await cluster.add(2)
    give_log(cluster, 2, 3, 90)
    await cluster.add(3)
    give_log(cluster, 3, 3, 90)
    assert cluster.leader.state().leader == NO_LEADER
    await cluster.add(4)
    give_log(cluster, 4, 3, 50)
    await until(lambda: cluster.leader.state().leader == 2)


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
