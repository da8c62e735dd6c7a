"""`headrace up --detach`, `headrace down` and `headrace status`.

The state file in the data directory describes the broker or cluster that uses it, started with
`headrace up` or `headrace broker`.

1. A signal is sent through a pidfd, after the start time of the process matched the state file: a
   process that got the same pid later is never signalled.
"""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.cli.cluster_data import running_brokers, unusable
from headrace.cli.connection import add_json_argument
from headrace.cli.failure import INTERRUPTED, Failure
from headrace.cli.ready import DATA_DIRECTORY, OUTPUT_FILE, process_identity, state_file
from headrace.log.upkeep.checkpoints import CLEAN_SHUTDOWN, META_PROPERTIES

STOP_S_MAX = 120.0
_POLL_S = 0.02
_DEFAULT = Path(DATA_DIRECTORY)


def add_down_arguments(parser: argparse.ArgumentParser) -> None:
    _add_data_argument(parser)


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    _add_data_argument(parser)
    add_json_argument(parser)


def _add_data_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        metavar="DIR",
        default=DATA_DIRECTORY,
        help=f"data directory of the broker or cluster (default: {DATA_DIRECTORY})",
    )


def start(data: Path) -> int:
    """Runs this command again, without --detach, in the background; returns when it is ready."""
    if _running(data) is not None:
        raise Failure(
            f"Headrace is already running: data directory {data}. Stop it with {_down(data)}."
        )
    output = data / OUTPUT_FILE
    command = [argument for argument in sys.argv[1:] if argument != "--detach"]
    is_new = not os.path.exists(data)
    try:
        data.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as file:
            begin = file.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace", *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise unusable(data, error) from None
    try:
        while not _is_of(data, process.pid):
            if process.poll() is not None:
                raise _failure_of(process, output, begin, data if is_new else None)
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        raise _stopped(process, output) from None
    print(_printed(output, begin), end="")
    print(f"Running in the background: pid {process.pid}, log {output}. Stop it: {_down(data)}")
    # The process continues without this one; do not warn about that.
    process.returncode = 0
    return 0


def _failure_of(
    process: subprocess.Popen[bytes], output: Path, begin: int, new_directory: Path | None
) -> Failure:
    """Print what the process printed, except the last line, which is the failure."""
    printed = _printed(output, begin).splitlines() or [
        f"Headrace failed to start and could not write its log, {output}. Free some space "
        "on its disk, or start it without --detach to see the reason."
    ]
    if begin == 0:
        output.unlink()
    if new_directory is not None:
        with suppress(OSError):
            new_directory.rmdir()
    for line in printed[:-1]:
        print(line, file=sys.stderr)
    return Failure(printed[-1].removeprefix("headrace: "), process.returncode or 1)


def _stopped(process: subprocess.Popen[bytes], output: Path) -> Failure:
    """Stop the process after Ctrl-C: `headrace down` cannot find it before it is ready."""
    try:
        process.terminate()
        process.wait()
    except KeyboardInterrupt:
        process.returncode = 0  # The process continues without this one.
        return Failure(
            f"Interrupted: Headrace is still stopping: pid {process.pid}, log {output}.",
            INTERRUPTED,
        )
    return Failure("Interrupted: Headrace has stopped, before it was ready.", INTERRUPTED)


def run_down(args: argparse.Namespace) -> int:
    data = Path(args.data)
    state = _running(data)
    # Separate brokers stop first, because they need the ZooKeeper of the cluster.
    processes = [
        (directory, pid, process_identity(pid))
        for directory, pid in _separate_brokers(data, state).items()
    ]
    if state is not None:
        processes.append((data, int(state["pid"]), state["process"]))
    if not processes:
        hint = " Name another data directory with --data." if data == _DEFAULT else ""
        raise Failure(f"Headrace is not running: data directory {data}.{hint}")
    exit_code = 0
    for directory, pid, identity in processes:
        if not stop_process(pid, identity, STOP_S_MAX):
            raise Failure(
                f"Headrace did not stop within {STOP_S_MAX:g} s: pid {pid}. See its log, "
                f"{directory / OUTPUT_FILE}, or end it with kill -9 {pid}."
            )
        if _is_unclean(directory):
            exit_code = 1
            print(
                f"Headrace has stopped, but not cleanly: pid {pid}, data in {directory}. "
                "See the errors in its log."
            )
        else:
            print(f"Headrace has stopped: pid {pid}, data in {directory}")
    return exit_code


def _is_unclean(directory: Path) -> bool:
    """Whether this is the directory of a broker whose last stop was not clean."""
    is_broker = (directory / META_PROPERTIES).exists()
    return is_broker and not (directory / CLEAN_SHUTDOWN).exists()


def stop_process(pid: int, identity: str, seconds: float) -> bool:
    """Stop a process with SIGTERM. Returns whether it ended within this time."""
    with _opened(pid, identity) as process:
        if process is None:
            return True
        signal.pidfd_send_signal(process, signal.SIGTERM)
        # A paused process does not handle SIGTERM.
        signal.pidfd_send_signal(process, signal.SIGCONT)
        return bool(select.select([process], [], [], seconds)[0])


def kill_process(pid: int, identity: str) -> None:
    with _opened(pid, identity) as process:
        if process is not None:
            signal.pidfd_send_signal(process, signal.SIGKILL)


@contextmanager
def _opened(pid: int, identity: str) -> Iterator[int | None]:
    """The pidfd of a process, or None if it has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield process if process_identity(pid) == identity else None
    except PermissionError:
        raise Failure(f"Cannot stop process {pid}: it belongs to another user.") from None
    finally:
        os.close(process)


def run_status(args: argparse.Namespace) -> int:
    data = Path(args.data)
    state = _running(data)
    if args.json:
        shown = {"running": state is not None, "data": str(data), **(state or {})}
        shown.pop("process", None)
        print(json.dumps(shown))
    elif state is None:
        print(f"Headrace is not running: data directory {data}")
        for directory, pid in _separate_brokers(data, None).items():
            node_id = directory.name.removeprefix("broker-")
            print(f"Broker {node_id}: pid {pid}, started with headrace broker")
    else:
        print(f"Headrace {state['version']} is running: pid {state['pid']}, data in {data}")
        print(f"bootstrap.servers={state['address']}")
        separate = _separate_brokers(data, state)
        for part in state.get("parts", ()):
            is_running = bool(process_identity(int(part["pid"])))
            name = "ZooKeeper node" if part["part"] == "zookeeper" else "Broker"
            condition = f"pid {part['pid']}" if is_running else "not running"
            restarted = separate.get(data / f"broker-{part['id']}")
            if name == "Broker" and restarted is not None:
                condition = f"pid {restarted}, started with headrace broker"
            print(f"{name} {part['id']}: {part['address']}, {condition}")
    return 0 if state is not None else 1


def _running(data: Path) -> dict[str, Any] | None:
    """The state of the process that uses the data directory, if it is running."""
    try:
        state = json.loads(state_file(data).read_text(encoding="utf-8"))
        is_same = process_identity(int(state["pid"])) == state["process"] != ""
    except PermissionError as error:
        raise Failure(
            f"Cannot read data directory {data}: {error.strerror}. Run this command as the user "
            "that started Headrace."
        ) from None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return state if is_same else None


def _separate_brokers(data: Path, cluster: dict[str, Any] | None) -> dict[Path, int]:
    """The processes of brokers that `headrace broker` started again, by their directories."""
    own = {part["pid"] for part in (cluster or {}).get("parts", ())}
    return {directory: pid for directory, pid in running_brokers(data).items() if pid not in own}


def _is_of(data: Path, pid: int) -> bool:
    state = _running(data)
    return state is not None and state["pid"] == pid


def _printed(output: Path, begin: int) -> str:
    with output.open("rb") as file:
        file.seek(begin)
        return file.read().decode(errors="replace")


def _down(data: Path) -> str:
    return "headrace down" if data == _DEFAULT else f"headrace down --data {data}"
