"""Long work in time slices: length of a slice, and completion of the rest."""

import asyncio

from headrace.runtime.slices import SLICE_SECONDS, Slices


def test_a_slice_ends_with_its_time_and_others_run_before_the_next() -> None:
    seconds = 0.0
    events: list[str] = []

    def step() -> bool:
        nonlocal seconds
        seconds += SLICE_SECONDS / 3
        events.append("step")
        return events.count("step") < 7

    async def scene() -> None:
        slices = Slices(step, lambda: seconds, lambda: events.append("end"))
        slices.run()
        asyncio.get_running_loop().call_soon(events.append, "other")
        assert events == ["step", "step", "step", "end"]
        slices.run()
        assert len(events) == 4
        for _ in range(4):
            await asyncio.sleep(0)
        assert events[4:] == ["step", "step", "step", "end", "other", "step", "end"]

    asyncio.run(scene())


def test_cancelled_slices_do_not_run() -> None:
    seconds = 0.0
    steps = 0

    def step() -> bool:
        nonlocal seconds, steps
        seconds += 1.0
        steps += 1
        return True

    async def scene() -> None:
        slices = Slices(step, lambda: seconds)
        slices.run()
        slices.stop()
        slices.run()
        for _ in range(3):
            await asyncio.sleep(0)
        assert steps == 1

    asyncio.run(scene())
