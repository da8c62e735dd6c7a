"""Random schedules of faults against a classic group; each assertion is in the world itself."""

import pytest

from tests.unit.group_world import PARTITIONS, World

SEEDS = 150


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


def test_the_schedules_do_something() -> None:
    world = World(3)
    world.run(2_000)
    assert world.rebalances > 10
    assert len(world.acked) == PARTITIONS
