"""Arguments and files of commands that run until they are stopped, and the ready line.

The files exist while the command is ready. They remain if the command is killed. The state file
contains the start time of the process, so that a later process with the same pid is not mistaken
for it.
"""

import argparse
import errno
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from headrace import __version__
from headrace.cli.failure import Failure

DATA_DIRECTORY = "./headrace-data"
STATE_FILE = "headrace-up.json"
OUTPUT_FILE = "headrace-up.log"


def add_directory_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data", metavar="DIR", help=f"data directory (default: {default})")
    where.add_argument(
        "--temp",
        action="store_true",
        help="use a temporary data directory, and delete it at the end",
    )


def add_ready_file_argument(parser: argparse.ArgumentParser, ready: str) -> None:
    parser.add_argument(
        "--ready-file",
        metavar="FILE",
        help=f"write address and pid to this file, as JSON; the file exists while {ready}",
    )


def state_file(data: Path) -> Path:
    """The path of the file that describes the process that uses this data directory."""
    return data / STATE_FILE


def process_identity(pid: int) -> str:
    """The boot and the start time of a process; empty if it does not exist or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    return "" if fields[0] in "XZ" else f"{boot} {fields[19]}"


def ready_line(address: str, directory: str) -> str:
    return (
        f"Headrace {__version__} is ready after {_running_s():.2f} s, data in {directory}: "
        f"bootstrap.servers={address}"
    )


def _running_s() -> float:
    """The time since the start of this process."""
    start_ticks = int(process_identity(os.getpid()).rpartition(" ")[2])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")


class ReadyFiles:
    """The file of --ready-file and the state file in the data directory, if given."""

    def __init__(self, ready: str | None, state: Path | None) -> None:
        self._ready = ready
        self._state = state

    def write(self, address: str, **more: object) -> None:
        if self._ready is not None:
            write_ready_file(self._ready, address, **more)
        if self._state is not None:
            more |= {"version": __version__, "process": process_identity(os.getpid())}
            # On a full disk the broker runs without a state file.
            with suppress(Failure):
                write_ready_file(str(self._state), address, **more)

    def remove(self) -> None:
        remove_ready_file(self._ready)
        remove_ready_file(None if self._state is None else str(self._state))


def check_ready_file(path: str | None) -> None:
    """Raise Failure if the file cannot be written. Called before the start creates data."""
    if path is not None and (problem := _unwritable(Path(path))):
        raise Failure(_ready_failure(path, problem), 2)


def _unwritable(path: Path) -> str:
    if path.is_dir():
        return os.strerror(errno.EISDIR)
    if not path.parent.is_dir():
        return os.strerror(errno.ENOTDIR if path.parent.exists() else errno.ENOENT)
    return "" if os.access(path.parent, os.W_OK) else os.strerror(errno.EACCES)


def _ready_failure(path: str, problem: str) -> str:
    return f"Cannot write the ready file {path}: {problem}. Choose another file with --ready-file."


def write_ready_file(path: str, address: str, **more: object) -> None:
    """Write the file under another name, then rename it. So readers never see a partial file."""
    part = f"{path}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            json.dump({"address": address, "pid": os.getpid(), **more}, file)
        os.replace(part, path)
    except OSError as error:
        raise Failure(_ready_failure(path, error.strerror or str(error))) from None


def remove_ready_file(path: str | None) -> None:
    """Remove the file unless another process has written it since."""
    if path is not None:
        with suppress(OSError, ValueError, LookupError, TypeError):
            with open(path, encoding="utf-8") as file:
                is_own = json.load(file)["pid"] == os.getpid()
            if is_own:
                os.unlink(path)


def stopped_line(name: str = "Headrace", *, is_temporary: bool, offline_log_count: int = 0) -> str:
    data = "the temporary data is deleted" if is_temporary else "all data is on disk"
    if offline_log_count and not is_temporary:
        are = "log is" if offline_log_count == 1 else "logs are"
        data = f"not all data is on disk: {offline_log_count} {are} offline, see the errors above"
    return f"{name} has stopped; {data}."


def killed_line(name: str = "Headrace", *, is_temporary: bool) -> str:
    data = "The temporary data is deleted" if is_temporary else "The next start recovers the data"
    return f"{name} was killed by a second stop signal. {data}."
