"""The blocking client and the one for asyncio are written twice, and must offer the same."""

import inspect

import pytest

from headrace.client import aio, blocking
from headrace.client.aio import groups, streams
from headrace.client.blocking import groups as blocking_groups
from headrace.client.blocking import streams as blocking_streams

TWINS: list[tuple[type, type]] = [
    (blocking.Client, aio.Client),
    (blocking_streams.Producer, streams.Producer),
    (blocking_streams.Consumer, streams.Consumer),
    (blocking_groups.GroupConsumer, groups.GroupConsumer),
]


BLOCKING_ONLY = {"partition_count", "report_waiting", "send_batch"}
"""For programs that build batches in threads, and for commands: they have no loop."""


def offered(client: type) -> dict[str, list[tuple[str, object, object]]]:
    """The public methods, and what they take."""
    return {
        name: [(each.name, each.kind, each.default) for each in parameters]
        for name, method in vars(client).items()
        if inspect.isfunction(method) and not name.startswith("_") and name not in BLOCKING_ONLY
        for parameters in [inspect.signature(method).parameters.values()]
    }


@pytest.mark.parametrize(("one", "other"), TWINS, ids=lambda each: each.__name__)
def test_both_clients_offer_the_same_methods_with_the_same_parameters(
    one: type, other: type
) -> None:
    assert offered(one) == offered(other)
