"""Ends the ZooKeeper session of a killed process when its successor starts.

The session of a killed process, and its registration, last until the session timeout. Its successor
would have to wait for that. But any client that has the password of a session can end it. Owns the
file with the password in the data directory, and encodes the few messages of ZooKeeper's protocol.

1. A session is ended only if its owner is certainly dead: a live owner would lose its leaderships.
   The caller holds the lock of the directory, so no other process uses the directory. The file must
   be in the directory in which it was written: the owner of a copied file can still run elsewhere.
   The boot id must be the same: a copy of the machine has another one, and so has the same machine
   after a restart, which cannot be told apart.
2. All of this only saves time: if it fails, the session ends by its timeout.
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
_CONNECT = struct.Struct(f">iiqiqi{_PASSWORD_BYTES}s?")
_CONNECTED = struct.Struct(">iii")
_CLOSE = struct.Struct(">iii")
_CLOSE_TYPE = -11
_TIMEOUT_MS = 10_000
_PORT = 2181
_log = logging.getLogger(__name__)


class Session(NamedTuple):
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
        try:
            with open(self._path, encoding="ascii") as file:
                document = json.load(file)
            present = self._boot_and_directory()
            if {name: document[name] for name in present} != present:
                return None
            return Session(int(document["session"]), bytes.fromhex(document["password"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remove(self) -> None:
        if os.path.exists(self._path):
            os.remove(self._path)

    def _boot_and_directory(self) -> dict[str, object]:
        """The identity of the machine's boot and of the directory (rule 1)."""
        with open(_BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
        status = os.stat(os.path.dirname(self._path))
        return {"boot": boot, "device": status.st_dev, "inode": status.st_ino}


async def end_session(hosts: str, session: Session, tls: ssl.SSLContext | None = None) -> None:
    """Try each host until one responds; `hosts` has the format of zookeeper.connect."""
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
            _CONNECT.pack(
                _CONNECT.size - 4,
                0,
                0,
                _TIMEOUT_MS,
                session.session_id,
                _PASSWORD_BYTES,
                session.password,
                False,
            )
        )
        size, _, timeout_ms = _CONNECTED.unpack(await reader.readexactly(_CONNECTED.size))
        await reader.readexactly(size + 4 - _CONNECTED.size)
        if timeout_ms > 0:
            writer.write(_CLOSE.pack(8, 1, _CLOSE_TYPE))
            # The response arrives after the ephemeral nodes are deleted.
            await reader.readexactly(4)
    finally:
        writer.transport.abort()
