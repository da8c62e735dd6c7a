"""The blocking client is generated from the one for asyncio, and offers the same methods."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.client import aio, blocking

ROOT = Path(__file__).resolve().parents[3]
TWINS: list[tuple[type, type]] = [
    (blocking.Client, aio.Client),
    (blocking.Producer, aio.Producer),
    (blocking.Consumer, aio.Consumer),
    (blocking.GroupConsumer, aio.GroupConsumer),
]


def offered(client: type) -> dict[str, list[tuple[str, object, object]]]:
    """The public methods of a class, and their parameters."""
    return {
        name: [(each.name, each.kind, each.default) for each in parameters]
        for name, method in vars(client).items()
        if inspect.isfunction(method) and not name.startswith("_")
        for parameters in [inspect.signature(method).parameters.values()]
    }


@pytest.mark.parametrize(("one", "other"), TWINS, ids=lambda each: each.__name__)
def test_both_clients_offer_the_same_methods_with_the_same_parameters(
    one: type, other: type
) -> None:
    assert offered(one) == offered(other)
    assert offered(one)


def test_the_blocking_client_is_generated_from_the_one_for_asyncio() -> None:
    command = [sys.executable, str(ROOT / "tools" / "blocking_client.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
