"""Candidates of the shell completion, and the scripts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.completion import SCRIPTS, candidates
from headrace.cli.main import COMMANDS, command_parser, main


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["to"], ["tokens", "topics", "tour"]),
        (["--v"], ["--version"]),
        (["up", "--zookeeper-n"], ["--zookeeper-nodes"]),
        (["topics", "cr"], ["create"]),
        (["topics", "create", "--rep"], ["--replication-factor"]),
        (["zookeeper", "i"], ["install"]),
        (["completion", ""], ["bash", "fish", "words", "zsh"]),
        (["produce", "--acks", ""], ["0", "1", "all"]),
        (["up", "--data", ""], []),
        (["up", "--detach", "--da"], ["--data"]),
        (["nonsense", "--"], []),
    ],
)
def test_candidates(words: list[str], expected: list[str]) -> None:
    assert candidates(words) == expected


def test_every_command_has_candidates() -> None:
    assert candidates([""]) == sorted([*COMMANDS, "--help", "--version"])
    for name in COMMANDS:
        assert set(command_parser(name)._option_string_actions) == set(candidates([name, "-"]))


@pytest.mark.parametrize("shell", SCRIPTS)
def test_script_is_valid(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", str(script)], check=True)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which `headrace` is a command."""
    command = tmp_path / "headrace"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headrace "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("headrace to", ["tokens", "topics", "tour"]),
        ("headrace topics ", ["alter", "create", "delete", "describe", "list"]),
        ("headrace consume --isolation ", ["read_committed", "read_uncommitted"]),
        ("headrace up --data ./scr", ["./scratch"]),
    ],
)
def test_fish_completes_a_command_line(
    line: str, expected: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "scratch").touch()
    done = subprocess.run(
        ["fish", "-c", f'{SCRIPTS["fish"]}complete -C "{line}"'],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == expected


def test_bash_completes_a_command_line(environment: dict[str, str]) -> None:
    script = SCRIPTS["bash"] + (
        "COMP_WORDS=(headrace up --zookeeper-p); COMP_CWORD=2; _headrace\n"
        'echo "${COMPREPLY[@]}"\n'
        "COMP_WORDS=(headrace topics ''); COMP_CWORD=2; _headrace\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first == "--zookeeper-port"
    assert {"create", "list", "delete"} <= set(second.split())
