"""Finds the installed compiled Headrace, or compiles it into `.cache/compiled/`.

`make bench` installs a compiled Headrace. Without it, this module compiles a copy of the sources,
so that no compiled file is written next to a source file. It compiles again only after a change of
the sources.
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
_BUILDS_KEPT = 4


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
    """A directory for PYTHONPATH that contains the compiled package."""
    installed = importlib.util.find_spec("headrace")
    if installed is not None and installed.origin is not None:
        directory = Path(installed.origin).parent.parent
        if is_compiled(directory):
            return directory
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = _sources()
        directory = _CACHE / f"site-{_fingerprint(sources)}"
        if not directory.is_dir():
            say("compiling Headrace")
            with tempfile.TemporaryDirectory(dir=_CACHE, prefix="build-") as scratch:
                _build(sources, Path(scratch)).rename(directory)
            _remove_old()
    return directory


def _build(sources: list[Path], scratch: Path) -> Path:
    for path in sources:
        target = scratch / "source" / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    wheels = scratch / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "-w", str(wheels), "."]
    done = subprocess.run(
        command, cwd=scratch / "source", capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    if done.returncode != 0:
        raise SystemExit(f"pip could not build the wheel:\n{output[-3000:]}")
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch / "site")
    if not is_compiled(scratch / "site"):
        lines = (line.strip() for line in output.splitlines())
        say("\n".join(line for line in lines if ": error:" in line or "headrace: the" in line))
    return scratch / "site"


def _remove_old() -> None:
    """Keep the newest builds, because another run might still use an older one."""
    sites = sorted(_CACHE.glob("site-*"), key=lambda path: path.stat().st_mtime)
    for path in sites[:-_BUILDS_KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def is_compiled(directory: Path) -> bool:
    return any((directory / "headrace").rglob("*.so"))
