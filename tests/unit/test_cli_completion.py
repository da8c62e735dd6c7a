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
        (["to"], ["topics", "tour"]),
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


def test_bash_completes_a_command_line(tmp_path: Path) -> None:
    command = tmp_path / "headrace"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headrace "$@"\n')
    command.chmod(0o755)
    script = SCRIPTS["bash"] + (
        "COMP_WORDS=(headrace up --zookeeper-p); COMP_CWORD=2; _headrace\n"
        'echo "${COMPREPLY[@]}"\n'
        "COMP_WORDS=(headrace topics ''); COMP_CWORD=2; _headrace\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first == "--zookeeper-port"
    assert {"create", "list", "delete"} <= set(second.split())
