"""Runs the same work for many items, some of them concurrently."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

AT_ONCE = 16

T = TypeVar("T")
R = TypeVar("R")


async def side_by_side(work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """The results in the order of the items. If one fails the others still end, then it raises."""
    numbered = list(enumerate(items))
    left = iter(numbered)
    results: dict[int, R] = {}

    async def take_turns() -> None:
        for number, item in left:
            results[number] = await work(item)

    turns = (take_turns() for _ in range(min(AT_ONCE, len(numbered))))
    for outcome in await asyncio.gather(*turns, return_exceptions=True):
        if outcome is not None:
            raise outcome
    return [results[number] for number, _ in numbered]
