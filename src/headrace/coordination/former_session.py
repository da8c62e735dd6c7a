"""Ends the ZooKeeper session of a killed process when its successor starts.

The session of a killed process, and its registration, last until the session timeout. Without this
module, the successor would wait for that. Any client that has the password of a session can end it.
Owns the file with the password in the data directory, and encodes the few messages of ZooKeeper's
protocol that are necessary.

1. A session is ended only if its owner is certainly dead, because a live owner would lose its
   leaderships. The caller holds the lock of the directory, so no other process uses the directory.
   The file must be in the directory in which it was written: the owner of a copied file can still
   run elsewhere. The boot id must be the same, because a copy of the machine has another one. The
   same machine also has another one after a restart, so the session is then not ended.
2. This only saves time: if it fails, the session expires after its timeout.
"""

import asyncio
import json
import logging
import os
import ssl
import struct
from typing import NamedTuple

END_S_MAX = 2.0
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_PASSWORD_BYTES = 16
_CONNECT_REQUEST = struct.Struct(f">iiqiqi{_PASSWORD_BYTES}s?")
_CONNECT_RESPONSE = struct.Struct(">iii")
_CLOSE_REQUEST = struct.Struct(">iii")
_CLOSE_TYPE = -11
_TIMEOUT_MS = 10_000
_PORT = 2181
_log = logging.getLogger(__name__)


class Session(NamedTuple):
    """A session, and the password with which any client can continue or end it."""

    session_id: int
    password: bytes


class SessionFile:
    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, session: Session) -> None:
        document = {"session": session.session_id, "password": session.password.hex()}
        part = self._path + ".part"
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                json.dump(document | self._boot_and_directory(), file)
            os.replace(part, self._path)
        except OSError as error:
            _log.warning("session id not written: file=%s error=%s", self._path, error.strerror)

    def read(self) -> Session | None:
        """The session; None if the file is missing, or its owner can still be running (rule 1)."""
        try:
            with open(self._path, encoding="ascii") as file:
                document = json.load(file)
            current = self._boot_and_directory()
            if {name: document[name] for name in current} != current:
                return None
            return Session(int(document["session"]), bytes.fromhex(document["password"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remove(self) -> None:
        if os.path.exists(self._path):
            os.remove(self._path)

    def _boot_and_directory(self) -> dict[str, object]:
        """The ids of the machine's boot and of the directory (rule 1)."""
        with open(_BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
        status = os.stat(os.path.dirname(self._path))
        return {"boot": boot, "device": status.st_dev, "inode": status.st_ino}


async def end_session(hosts: str, session: Session, tls: ssl.SSLContext | None = None) -> None:
    """End a session through the first host that responds.

    `hosts` has the format of zookeeper.connect, without a path.
    """
    for address in hosts.split(","):
        host, colon, port = address.rpartition(":")
        try:
            async with asyncio.timeout(END_S_MAX):
                await _end_at(
                    host.strip("[]") if colon else address,
                    int(port) if colon else _PORT,
                    session,
                    tls,
                )
            return
        except (OSError, asyncio.IncompleteReadError):
            continue
    _log.info("former session not closed, waiting for its timeout: session=%x", session.session_id)


async def _end_at(host: str, port: int, session: Session, tls: ssl.SSLContext | None) -> None:
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        writer.write(
            _CONNECT_REQUEST.pack(
                _CONNECT_REQUEST.size - 4,
                0,
                0,
                _TIMEOUT_MS,
                session.session_id,
                _PASSWORD_BYTES,
                session.password,
                False,
            )
        )
        size, _, timeout_ms = _CONNECT_RESPONSE.unpack(
            await reader.readexactly(_CONNECT_RESPONSE.size)
        )
        await reader.readexactly(size + 4 - _CONNECT_RESPONSE.size)
        if timeout_ms > 0:
            writer.write(_CLOSE_REQUEST.pack(8, 1, _CLOSE_TYPE))
            # The response arrives after the ephemeral nodes are deleted.
            await reader.readexactly(4)
    finally:
        writer.transport.abort()
