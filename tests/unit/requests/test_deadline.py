"""Work that a request started and that outlives its waiting."""

import asyncio
from typing import Any

import pytest

from headrace.env.clock import SystemClock
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.deadline import Deadline


@pytest.mark.parametrize("has_gone", [False, True], ids=["too late", "the client has gone"])
def test_failure_after_the_timeout_of_a_request_is_not_logged_as_a_bug(has_gone: bool) -> None:
    complaints: list[dict[str, Any]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, complaint: complaints.append(complaint))
        release = asyncio.Event()

        async def work() -> None:
            await release.wait()
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS)

        deadline = Deadline(SystemClock(), 60_000 if has_gone else 1)
        waiting = asyncio.ensure_future(deadline.wait_for(work()))
        await asyncio.sleep(0)
        if has_gone:
            waiting.cancel()
        with pytest.raises((ApiError, asyncio.CancelledError)):
            await waiting
        release.set()
        own = asyncio.current_task()
        await asyncio.wait([task for task in asyncio.all_tasks() if task is not own])

    asyncio.run(run())
    assert complaints == []
