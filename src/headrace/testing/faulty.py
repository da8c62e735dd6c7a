"""Runs a `headrace` command whose disk and network fail on request, for brokers of tests.

    python -m headrace.testing.faulty NAME FAULTS COMMAND ...

runs `headrace COMMAND ...` with these faults (JSON). A thread accepts other faults on the abstract
Unix socket NAME, from processes of the same user. `headrace.testing.faults` sends them.

1. Methods of the broker are replaced only while a fault is set.
"""

import errno
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.cli.main import main as run_headrace
from headrace.env.files import Bytes, SystemFiles

_append = SystemFiles.append
_sync = SystemFiles.sync
_sync_file_system = SystemFiles.sync_file_system


def apply(faults: dict[str, Any]) -> None:
    _set_disk(float(faults.get("slow_disk", 0)), is_full=bool(faults.get("full_disk")))
    ports = faults.get("lose_responses")
    if ports:
        _lose_responses(set(ports))


def _set_disk(delay_s: float, *, is_full: bool) -> None:
    def append(files: SystemFiles, fd: int, buffers: Sequence[Bytes]) -> None:
        time.sleep(delay_s)
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _append(files, fd, buffers)

    def delayed(method: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            time.sleep(delay_s)
            method(*args)

        return run

    is_changed = is_full or delay_s > 0
    replacements: dict[str, Callable[..., None]] = {
        "append": append if is_changed else _append,
        "sync": delayed(_sync) if delay_s else _sync,
        "sync_file_system": delayed(_sync_file_system) if delay_s else _sync_file_system,
    }
    for name, method in replacements.items():
        setattr(SystemFiles, name, method)


def _lose_responses(ports: set[int]) -> None:
    """Close each open connection to these ports instead of sending its next response."""
    to_close = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            to_close.add(os.stat(int(name)).st_ino)
        except OSError:
            continue

    def send(sock: socket.socket, data: Bytes, flags: int = 0) -> int:
        inode = os.fstat(sock.fileno()).st_ino
        if inode in to_close and sock.family != socket.AF_UNIX and sock.getsockname()[1] in ports:
            to_close.discard(inode)
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return super(socket.socket, sock).send(data, flags)

    setattr(socket.socket, "send", send)  # noqa: B010  mypy rejects the plain assignment.


def _serve(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        with connection:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            _, user, _ = struct.unpack("3i", credentials)
            if user != os.getuid():
                continue
            with connection.makefile("rw", encoding="utf-8") as stream:
                for line in stream:
                    apply(json.loads(line))
                    stream.write("ok\n")
                    stream.flush()


def main(arguments: Sequence[str]) -> int:
    name, faults, *command = arguments
    apply(json.loads(faults))
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(f"\0{name}")
    server.listen()
    threading.Thread(target=_serve, args=(server,), daemon=True, name="faults").start()
    return run_headrace(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
