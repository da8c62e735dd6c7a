"""Apache Kafka's Java client and tools, fetched by Maven, and kcat."""

import re
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
    # A Java virtual machine takes seconds to start on few cores.
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(240))


def run(command: list[str], stdin: str | None = None) -> str:
    """Run a command and return its output. On failure, the message has the complete output."""
    done = subprocess.run(
        command, input=stdin or "", capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}\n{said}"
    return done.stdout


def compiled(program: str, classes: Path) -> list[str]:
    """Compiles a program of this directory; returns the command that runs it."""
    jars = kafka.class_path()
    compiler = ["javac", "-proc:none", "-d", str(classes), "-cp", jars, "-sourcepath", str(HERE)]
    subprocess.run([*compiler, str(HERE / f"{program}.java")], check=True)
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options.append(f"-Dlog4j2.configurationFile={kafka.CACHE / 'tools-log4j2.properties'}")
    return [kafka.java(), *options, "-cp", f"{classes}:{jars}", program]


def sentences(program: str) -> list[str]:
    """The scenarios of a program, but for those that it has several times with other settings."""
    return re.findall(r'all\.put\("([^"]+)", this::', (HERE / f"{program}.java").read_text())


def outcomes_of(program: str, address: str, classes: Path) -> dict[str, str]:
    """What became of each scenario: "PASS", or "FAIL" and why."""
    done = subprocess.run(
        [*compiled(program, classes), address],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    print(done.stderr)  # Shown by pytest with what failed.
    found = (line.split("\t", 2) for line in done.stdout.splitlines() if "\t" in line)
    return {sentence: " ".join([verdict, *why]) for verdict, sentence, *why in found}


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
