"""The same work for many things: some at a time, so that they share their waiting."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

AT_ONCE = 16

T = TypeVar("T")
R = TypeVar("R")


async def side_by_side(work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """The results in the order of the items. If one fails the others still end, then it raises."""
    room = asyncio.Semaphore(AT_ONCE)

    async def in_turn(item: T) -> R:
        async with room:
            return await work(item)

    results = await asyncio.gather(*map(in_turn, items), return_exceptions=True)
    found: list[R] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found
