"""The example runs as it says."""

import subprocess
import sys
from pathlib import Path

from headrace.testing import RunningBroker

EXAMPLE = Path(__file__).parents[2] / "examples" / "client.py"


def test_the_example_runs(shared_broker: RunningBroker) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), shared_broker.address],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stderr == ""
    assert "read 1001 records" in done.stdout
    assert "saw [b'tick', b'tick', b'tick']" in done.stdout
