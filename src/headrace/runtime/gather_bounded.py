"""Runs a coroutine per item, at most CONCURRENT_MAX at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

CONCURRENT_MAX = 16

T = TypeVar("T")
R = TypeVar("R")


async def gather_bounded(work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """The results, in the order of the items. If one fails, the others complete, then it raises."""
    numbered = list(enumerate(items))
    left = iter(numbered)
    results: dict[int, R] = {}

    async def run_items() -> None:
        for number, item in left:
            results[number] = await work(item)

    runs = (run_items() for _ in range(min(CONCURRENT_MAX, len(numbered))))
    for outcome in await asyncio.gather(*runs, return_exceptions=True):
        if outcome is not None:
            raise outcome
    return [results[number] for number, _ in numbered]
