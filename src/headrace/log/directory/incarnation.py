"""Proves that a data directory still contains everything that its last broker process wrote.

Owns `headrace-incarnation`, the marker that a broker writes at each registration, and the witness,
an empty file that the marker names. Waits for the disk.

1. After a kill, the page cache still has all writes. The marker proves this if the machine has not
   booted and the file system was not mounted since.
2. In a copy of the directory, the witness has another inode number and change time. So a copy,
   which can lack the last writes, proves nothing.
3. When a log fails, the broker withdraws the proof, because the kernel can have dropped unwritten
   pages.

Limits: if a file system is set back to a snapshot without unmounting, the witness stays valid. If a
file system has no entry in /sys/fs, only the boot is compared, not the mount.
"""

import json
import logging
from typing import NamedTuple

from headrace.env.files import Files

MARKER = "headrace-incarnation"
_WITNESS_PREFIX = "headrace-witness-"
_VERSION = 1
_LOG = logging.getLogger(__name__)


class Incarnation(NamedTuple):
    """The proof that a marker gives."""

    broker_epoch: int = -1
    """The last registration that wrote to the directory; -1 for a copy or an unreadable marker."""
    is_cached: bool = False
    """Whether the page cache still has everything that this registration wrote."""


def read(files: Files, directory: str) -> Incarnation:
    """Read the marker of a directory."""
    try:
        content = json.loads(files.read_file(f"{directory}/{MARKER}"))
        broker_epoch = int(content["broker_epoch"])
        witness = str(content["witness"])
        if files.identity(f"{directory}/{witness}") != content["witness_identity"]:
            return Incarnation()
        page_cache_id = files.page_cache_id(directory)
        is_cached = page_cache_id != "" and page_cache_id == content["page_cache_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return Incarnation()
    return Incarnation(broker_epoch, is_cached)


def write(files: Files, directory: str, broker_epoch: int) -> None:
    """Write the marker for a new registration."""
    witness = f"{_WITNESS_PREFIX}{broker_epoch}"
    try:
        files.write_file(f"{directory}/{witness}", b"", sync=True)
        _write(files, directory, broker_epoch, witness, files.page_cache_id(directory))
        for info in files.list_directory(directory):
            if info.name.startswith(_WITNESS_PREFIX) and info.name != witness:
                files.remove(f"{directory}/{info.name}")
    except OSError as error:
        _LOG.warning("incarnation marker not written: directory=%s error=%s", directory, error)


def withdraw(files: Files, directory: str, broker_epoch: int) -> None:
    """Make the marker prove nothing, until another process registers."""
    witness = f"{_WITNESS_PREFIX}{broker_epoch}"
    try:
        _write(files, directory, broker_epoch, witness, "")
    except OSError:
        try:
            files.remove(f"{directory}/{MARKER}")
        except OSError as error:
            _LOG.warning("incarnation marker not removed: directory=%s error=%s", directory, error)


def _write(
    files: Files, directory: str, broker_epoch: int, witness: str, page_cache_id: str
) -> None:
    content = {
        "version": _VERSION,
        "broker_epoch": broker_epoch,
        "page_cache_id": page_cache_id,
        "witness": witness,
        "witness_identity": files.identity(f"{directory}/{witness}"),
    }
    files.replace_file(f"{directory}/{MARKER}", json.dumps(content).encode())
