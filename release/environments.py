"""Commands and virtual environments for builds and trials."""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class DistFailed(Exception):
    """A step failed. The message contains the output of the command."""


def run(*command: str | Path, cwd: Path = ROOT, variables: Mapping[str, str] | None = None) -> str:
    """Run a command without variables PYTHON*, and return its output. Raises DistFailed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**inherited, **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        shown = " ".join(map(str, command))
        raise DistFailed(f"{shown} failed with exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


def new_environment(directory: Path, python: str | Path) -> Path:
    """Create a virtual environment, and return the path of its Python."""
    run(python, "-m", "venv", directory)
    return directory / "bin" / "python"


def install(python: Path, *arguments: str | Path) -> float:
    """Run pip install, and return its duration in seconds."""
    began_s = time.monotonic()
    run(python, "-m", "pip", "install", "--disable-pip-version-check", *arguments)
    return time.monotonic() - began_s
