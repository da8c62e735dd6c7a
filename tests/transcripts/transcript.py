"""Text transcripts of scenarios: commands, and after `----` the output of the commands.

A transcript is a list of steps, separated by blank lines. Lines that begin with `#` explain the
scenario. `HEADRACE_RECORD=1 pytest tests/transcripts` writes the present output to the files; the
difference then shows what a change does.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

SEPARATOR = "----"
IS_RECORDING = bool(os.environ.get("HEADRACE_RECORD"))

Condition = Callable[[], bool]
Play = Callable[[str], list[str]]
"""Executes a command, such as `kill 1`, and returns its output."""


def files(folder: str) -> list[Path]:
    return sorted((Path(__file__).parent / folder).glob("*.txt"))


def _steps(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """The commands and the recorded output of each step."""
    for block in text.strip().split("\n\n"):
        commands, _, output = block.partition(f"{SEPARATOR}\n")
        yield commands.splitlines(), output.splitlines()


def check(path: Path, play: Play) -> None:
    """Play a transcript and compare the output, or record it."""
    blocks = []
    steps = list(_steps(path.read_text()))
    assert any(not line.startswith("#") for commands, _ in steps for line in commands)
    for commands, recorded in steps:
        output: list[str] = []
        for command in commands:
            if command and not command.startswith("#"):
                output += play(command)
        blocks.append("\n".join([*commands, *([SEPARATOR, *output] if output else [])]))
        if not IS_RECORDING:
            assert output == recorded, f"{path.name}, after: {'; '.join(commands)}"
    if IS_RECORDING:
        path.write_text("\n\n".join(blocks) + "\n")
