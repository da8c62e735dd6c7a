"""Apache Kafka's Java client and tools, fetched by Maven, and kcat."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import kafka

TIMEOUT_S = 90.0
HERE = Path(__file__).parent

Run = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A Java virtual machine takes seconds to start where the cores are few.
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(240))


def run(command: list[str], stdin: str | None = None) -> str:
    """Runs a command to its end and returns what it printed; fails with all that it said."""
    done = subprocess.run(
        command, input=stdin or "", capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}\n{said}"
    return done.stdout


@pytest.fixture
def tool(bootstrap: str) -> Run:
    """Runs one of Kafka's tools against the broker: `tool(kafka.TOPIC_COMMAND, "--list")`."""

    def ask(main_class: str, *arguments: str, stdin: str | None = None) -> str:
        server = ["--bootstrap-server", bootstrap]
        return run(kafka.tool_command(main_class, [*server, *arguments]), stdin)

    return ask


@pytest.fixture
def kcat(bootstrap: str) -> Run:
    """Runs kcat against the broker."""
    if shutil.which("kcat") is None:
        pytest.fail("kcat is missing: `make test-java` installs it")

    def ask(*arguments: str, stdin: str | None = None) -> str:
        return run(["kcat", "-b", bootstrap, *arguments], stdin)

    return ask
