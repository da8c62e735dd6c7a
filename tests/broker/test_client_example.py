"""The examples of the client run."""

import subprocess
import sys
from pathlib import Path

from headrace.testing import RunningBroker

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, broker: RunningBroker) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), broker.address],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def test_the_example_of_the_client_runs(shared_broker: RunningBroker) -> None:
    said = run_example("client.py", shared_broker)
    assert "read 1001 records" in said
    assert "read [b'tick', b'tick', b'tick']" in said


def test_the_example_of_groups_runs(shared_broker: RunningBroker) -> None:
    said = run_example("groups.py", shared_broker)
    assert "read 30 records, 0 duplicates" in said
