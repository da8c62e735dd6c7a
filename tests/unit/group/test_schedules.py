"""Random schedules of faults against groups. The assertions are in the scenario modules.

HEADRACE_GROUP_SEEDS sets the number of schedules, for example HEADRACE_GROUP_SEEDS=5000.
"""

import os

import pytest

from tests.unit.group.classic_faults_scenario import PARTITIONS, World
from tests.unit.group.consumer_faults_scenario import World as BothProtocols

SEEDS = int(os.environ.get("HEADRACE_GROUP_SEEDS", "150"))


@pytest.mark.parametrize("first", range(0, SEEDS, 25))
def test_no_schedule_gives_a_partition_two_owners_or_loses_a_commit(first: int) -> None:
    """I21 and I22 after every step, I23 for every rebalance, and progress when faults end."""
    for seed in range(first, first + 25):
        world = World(seed)
        try:
            world.run(600)
            world.check_offsets()
            world.heal()
            world.check_offsets()
            world.check_progress()
        except AssertionError as error:
            raise AssertionError(f"seed {seed} at {world.ms} ms: {error}") from error


def test_a_seed_gives_the_same_run_twice() -> None:
    worlds = World(7), World(7)
    for world in worlds:
        world.run(400)
    assert worlds[0].log == worlds[1].log
    assert worlds[0].owners == worlds[1].owners


def test_schedules_reach_the_interesting_states() -> None:
    world = World(3)
    world.run(2_000)
    assert world.rebalances > 10
    assert len(world.acked) == PARTITIONS


@pytest.mark.parametrize("classic_share", [0.0, 0.5])
@pytest.mark.parametrize("first", range(0, SEEDS // 2, 25))
def test_no_schedule_breaks_a_group_of_the_consumer_protocol_or_of_both(
    first: int, classic_share: float
) -> None:
    """I21 and I22 at every step, through migrations both ways, and progress when faults end."""
    for seed in range(first, first + 25):
        world = BothProtocols(seed, classic_share)
        try:
            world.run(250)
            world.heal()
            world.check_progress()
        except AssertionError as error:
            raise AssertionError(f"seed {seed} at {world.ms} ms: {error}") from error


def test_schedules_of_both_protocols_reach_the_interesting_states() -> None:
    world = BothProtocols(3, 0.5)
    world.run(3_000)
    assert world.conversions > 3
    assert world.beats > 100
    assert len(world.acked) >= 6
