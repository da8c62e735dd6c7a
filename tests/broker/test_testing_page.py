"""The examples of docs/TESTING.md run as they are printed."""

import subprocess
import sys

import pytest

from tests.broker.test_testing_plugin import PLUGIN
from tests.testing_page import ECOSYSTEM, EXAMPLES, PAGE

pytest_plugins = ["pytester"]


def run(pytester: pytest.Pytester, name: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(**{name.removesuffix(".py"): EXAMPLES[name]})
    return pytester.runpytest_subprocess("-p", "no:randomly", *PLUGIN, *options)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("test_orders.py", 1),
        ("test_shared.py", 2),
        ("test_cluster.py", 1),
        ("test_faults.py", 3),
        ("test_secure.py", 1),
        ("test_with_unittest.py", 1),
    ],
)
def test_example_passes(pytester: pytest.Pytester, name: str, count: int) -> None:
    run(pytester, name).assert_outcomes(passed=count)


def test_example_passes_with_xdist(pytester: pytest.Pytester) -> None:
    run(pytester, "test_shared.py", "-n", "2").assert_outcomes(passed=2)


def test_script_prints_the_record(pytester: pytest.Pytester) -> None:
    script = pytester.makepyfile(script=EXAMPLES["script.py"])
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[b'3 apples']\n"), done.stderr


def test_every_example_has_a_test() -> None:
    generic = {"test_orders.py", "test_shared.py", "test_cluster.py", "test_faults.py"}
    other = {"test_secure.py", "test_with_unittest.py", "script.py"}
    assert set(EXAMPLES) == {*generic, *other, *ECOSYSTEM}
    assert PAGE.read_text(encoding="utf-8").count("```python") == len(EXAMPLES)
