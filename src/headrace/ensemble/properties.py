"""Writes Java's .properties files."""

import os
from collections.abc import Mapping
from pathlib import Path


def properties_text(settings: Mapping[str, str]) -> str:
    """ASCII text; backslashes and non-ASCII characters are escaped."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


def write_private(file: Path, text: str) -> None:
    """Write a file that can contain passwords: only its owner can access it."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="ascii") as opened:
        # The file of an earlier start can have another mode.
        os.fchmod(descriptor, 0o600)
        opened.write(text)


def _escaped(value: str) -> str:
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    text = "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)
    # Java would skip a leading space.
    return "\\" + text if text.startswith(" ") else text
