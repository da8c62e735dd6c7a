"""The programs and commands of the README run as shown."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import RunningBroker
from tests.broker.test_testing_plugin import PLUGIN

pytest_plugins = ["pytester"]

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
SESSION, EXAMPLE_TEST, _ON_SPARK = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
ADDRESS = "127.0.0.1:9092"
QUIET = "import warnings\nwarnings.simplefilter('ignore')\n"


def test_first_session_of_the_readme_runs(broker: RunningBroker) -> None:
    assert ADDRESS in SESSION
    program = QUIET + SESSION.replace(ADDRESS, broker.address)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{n} b'wheel' b'turn {n}'" for n in range(3)]


def test_the_command_line_does_what_the_readme_says(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.address)
    lines = re.findall(r"^    \$ (.*headrace (?:topics|produce|consume).*)$", README, re.MULTILINE)
    assert len(lines) == 3
    script = "set -e\n" + "\n".join(lines).replace("headrace ", f"{sys.executable} -m headrace ")
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^[012]:0 hello$", done.stdout, re.MULTILINE)


def test_the_example_test_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(EXAMPLE_TEST)
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)
