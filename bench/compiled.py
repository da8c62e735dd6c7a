"""Headrace as a user gets it: with its compiled modules, beside the sources.

Owns `.cache/compiled/`, used where the interpreter that runs this has no compiled Headrace of its
own (`make bench` installs one). Builds from a copy, so that no compiled file ever lies among the
sources, and only when a source has changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from bench.kafka import ROOT, say

_CACHE = ROOT / ".cache" / "compiled"
_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
_KEPT = 4


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
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = _sources()
        directory = _CACHE / f"site-{_fingerprint(sources)}"
        if not directory.is_dir():
            say("compiling Headrace")
            with tempfile.TemporaryDirectory(dir=_CACHE, prefix="build-") as place:
                _build(sources, Path(place)).rename(directory)
            _forget_old()
    return directory


def _build(sources: list[Path], place: Path) -> Path:
    for path in sources:
        target = place / "source" / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    wheels = place / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "-w", str(wheels), "."]
    done = subprocess.run(
        command, cwd=place / "source", capture_output=True, text=True, check=False
    )
    told = done.stdout + done.stderr
    if done.returncode != 0:
        raise SystemExit(f"the wheel could not be built:\n{told[-3000:]}")
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "site")
    if not is_compiled(place / "site"):
        lines = (line.strip() for line in told.splitlines())
        say("\n".join(line for line in lines if ": error:" in line or "headrace: the" in line))
    return place / "site"


def _forget_old() -> None:
    """Keeps the newest few: another run may still be using the one before."""
    sites = sorted(_CACHE.glob("site-*"), key=lambda path: path.stat().st_mtime)
    for path in sites[:-_KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def is_compiled(directory: Path) -> bool:
    return any((directory / "headrace").rglob("*.so"))
