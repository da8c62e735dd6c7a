"""Commands of docs/SECURITY.md and docs/PIPELINES.md run as the pages show them.

tests/unit/test_doc_commands.py parses the commands of all pages. Commands that need Spark run in
tests/pipelines and tests/spark_cluster.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.client import connect
from headrace.ensemble.zookeeper import free_port
from headrace.testing import RunningBroker

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def block(text: str, first_line: str) -> str:
    """The indented block that starts with this text."""
    (found,) = re.findall(rf"^    {re.escape(first_line)}.*\n(?:    .*\n)*", text, re.MULTILINE)
    return re.sub(r"^    ", "", found, flags=re.MULTILINE)


def run(script: str, directory: Path, address: str = "", stdin: str = "") -> str:
    """Run shell commands with the `headrace` and `python` of this test."""
    shim = directory / "bin"
    shim.mkdir(exist_ok=True)
    for name, command in (
        ("headrace", f"{sys.executable} -m headrace"),
        ("python", sys.executable),
    ):
        (shim / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (shim / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=directory,
        env={**os.environ, "PATH": f"{shim}:{os.environ['PATH']}", "HEADRACE_BOOTSTRAP": address},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_users_of_the_security_page(tmp_path: Path) -> None:
    text = page("SECURITY.md")
    first = block(text, "headrace users bootstrap admin").splitlines()[0]
    run(first, tmp_path, stdin="secret-1\n")
    settings = dict(
        line.split("=", 1) for line in block(text, "listeners=SASL_PLAINTEXT").splitlines()
    )
    settings["listeners"] = f"SASL_PLAINTEXT://127.0.0.1:{free_port()}"
    login = block(text, "security.protocol=SASL_PLAINTEXT").replace(
        "sasl.password=...", "sasl.password=secret-1"
    )
    assert "secret-1" in login
    (tmp_path / "admin.properties").write_text(login)
    commands = block(text, "headrace users create bob --config").splitlines()
    assert len(commands) >= 4
    with RunningBroker.start(tmp_path / "headrace-data", settings=settings) as broker:
        shown = [run(line, tmp_path, broker.address, "secret-2\n") for line in commands]
    users = next(text for line, text in zip(commands, shown, strict=True) if " list " in line)
    assert "admin" in users
    assert "bob" in users


def test_certificates_of_the_security_page(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    run(block(page("SECURITY.md"), "headrace certs ca"), tmp_path)
    run("headrace certs check tls/broker1.pem --ca tls/ca.pem --host broker1.example", tmp_path)


def test_quotas_of_the_security_page(broker: RunningBroker, tmp_path: Path) -> None:
    shown = block(page("SECURITY.md"), "$ headrace quotas set")
    commands = [line[2:] for line in shown.splitlines() if line.startswith("$ ")]
    expected = [line for line in shown.splitlines() if not line.startswith("$ ")]
    listed = [run(line, tmp_path, broker.address) for line in commands if "delete" not in line]
    assert [line.rstrip() for line in listed[-1].splitlines()] == expected
    run("\n".join(line for line in commands if "delete" in line), tmp_path, broker.address)


def test_acls_of_the_security_page(tmp_path: Path) -> None:
    text = page("SECURITY.md")
    settings = dict(line.split("=", 1) for line in block(text, "authorizer.class").splitlines())
    # This test does not log in.
    settings["super.users"] = "User:ANONYMOUS"
    commands = block(text, "headrace acls add --user bob --producer --topic orders --config")
    commands = commands.replace(" --config admin.properties", "")
    with RunningBroker.start(tmp_path / "data", settings=settings) as broker:
        for line in commands.splitlines():
            if "--zookeeper" not in line:
                run(line, tmp_path, broker.address)
    assert "orders.secret" in (tmp_path / "acls.json").read_text()


def test_projects_of_the_pipelines_page(broker: RunningBroker, tmp_path: Path) -> None:
    text = page("PIPELINES.md")
    with connect(broker.address) as client:
        client.produce("T", '{"mill": 1, "flour": "fine"}')
    own = [line for line in block(text, "headrace up &").splitlines() if "init" in line]
    run("\n".join(own), tmp_path, broker.address)
    (definition,) = (tmp_path / "mill" / "transformations").glob("*.py")
    assert "flour" in definition.read_text()
    # Later commands need Spark: tests/pipelines runs the shop.
    sample = block(text, "headrace pipeline init shop").partition(" && headrace pipeline run")[0]
    run(sample, tmp_path, broker.address)
    with connect(broker.address) as client:
        assert "orders" in client.list_topics()


def documented_options() -> dict[str, set[str]]:
    """The options of each `python -m MODULE` in the pages."""
    root = DOCS.parent
    found: dict[str, set[str]] = {}
    for path in (root / "README.md", root / "CONTRIBUTING.md", *DOCS.glob("*.md")):
        for name, rest in re.findall(r"`python -m ([a-z_.]+)([^`]*)`", path.read_text()):
            options = set(re.findall(r"(?<!\S)--[a-z-]+", rest))
            if options and name != "headrace":
                found.setdefault(name, set()).update(options)
    return found


@pytest.mark.parametrize("module", sorted(documented_options()))
def test_module_has_the_documented_options(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=DOCS.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    known = set(re.findall(r"--[a-z-]+", done.stdout))
    assert sorted(documented_options()[module] - known) == []
