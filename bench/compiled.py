"""Headrace as a user gets it: with its compiled modules, beside the sources.

Owns `.cache/compiled/`, used where the interpreter that runs this has no compiled Headrace of its
own (`make bench` installs one). Builds from a copy, so that no compiled file ever lies among the
sources, and only when a source has changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from bench.kafka import ROOT, say

_CACHE = ROOT / ".cache" / "compiled"
_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


def _sources() -> list[Path]:
    files = [ROOT / name for name in _FILES if (ROOT / name).exists()]
    return files + sorted(
        path
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and path.suffix in {".py", ".typed"}
    )


def _fingerprint(sources: list[Path]) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in sources:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def site() -> Path:
    """A directory for PYTHONPATH that holds the compiled package."""
    installed = importlib.util.find_spec("headrace")
    if installed is not None and installed.origin is not None:
        where = Path(installed.origin).parent.parent
        if is_compiled(where):
            return where
    sources = _sources()
    directory = _CACHE / _fingerprint(sources)
    if directory.is_dir():
        return directory
    say("compiling Headrace")
    shutil.rmtree(_CACHE, ignore_errors=True)
    copy = _CACHE / "source"
    for path in sources:
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    wheels = _CACHE / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "-w", str(wheels), "."]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the wheel could not be built:\n{(done.stdout + done.stderr)[-3000:]}")
    (wheel,) = wheels.glob("*.whl")
    arriving = _CACHE / "arriving"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(arriving)
    if not is_compiled(arriving):
        told = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        say("\n".join(line for line in told if ": error:" in line or line.startswith("headrace:")))
    arriving.rename(directory)
    return directory


def is_compiled(directory: Path) -> bool:
    return any((directory / "headrace").rglob("*.so"))
