"""The file of the embedded store: an SQLite database with the durable nodes.

Owns the schema and all SQL statements. One thread at a time uses it, never the loop, because each
call can wait for the disk. It does not check versions or sessions.

1. `commit` returns after its transaction is on disk (write-ahead log, synchronous=FULL).
2. After an error that leaves the state of the disk unknown, all later commits are rejected (B13).
   If the disk was full, the transaction was rolled back, and the commit can be retried.
3. Ephemeral nodes are not written, so those of a former process do not exist after `open`.
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from headrace.coordination.port import PERSISTENT, Stat, StoreFull
from headrace.coordination.tree import Change, Node

if TYPE_CHECKING:
    import sqlite3

FORMAT = 1
APPLICATION_ID = 0x48524353
_SCHEMA = (
    f"PRAGMA application_id={APPLICATION_ID}",
    f"PRAGMA user_version={FORMAT}",
    "CREATE TABLE node (path TEXT PRIMARY KEY, data BLOB NOT NULL, czxid INTEGER NOT NULL,"
    " mzxid INTEGER NOT NULL, pzxid INTEGER NOT NULL, version INTEGER NOT NULL,"
    " cversion INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE epoch (only INTEGER PRIMARY KEY CHECK (only = 0), value INTEGER NOT NULL)",
    "INSERT INTO epoch VALUES (0, 0)",
)


class StoreFileError(Exception):
    """The file cannot be used; the message contains the next step."""


class Loaded(NamedTuple):
    """The content of the file."""

    epoch: int
    """The largest epoch that zxids can have used."""
    nodes: list[tuple[str, Node]]


class Database:
    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._has_failed = False

    def open(self) -> Loaded:
        """Open the file, or create it. Raises StoreFileError."""
        # Imported here: brokers with ZooKeeper do not need it, and the import slows the start.
        import sqlite3

        try:
            if not os.path.exists(self._path):
                self._create()
            # The file contains credentials. SQLite gives new files the same mode, but does not
            # change the mode of a write-ahead log that a killed process has left.
            for path in (self._path, self._path + "-wal"):
                if os.path.exists(path):
                    os.chmod(path, 0o600)
            self._connection = self._connect(self._path)
            return self._prepare(self._connection)
        except sqlite3.Error as error:
            self.close()
            raise self._error_of(error) from None
        except OSError as error:
            raise StoreFileError(
                f"The store {self._path} cannot be created: {error.strerror or error}. Fix that, "
                "or choose another data directory."
            ) from None
        except StoreFileError:
            self.close()
            raise

    def _connect(self, path: str) -> "sqlite3.Connection":
        import sqlite3

        return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)

    def _create(self) -> None:
        # Create the file under another name, and sync it once. SQLite would sync an empty database
        # seven times.
        new = self._path + ".new"
        # SQLite would replay a write-ahead log without a database into the new one.
        for leftover in (new, new + "-journal", new + "-wal", self._path + "-wal"):
            if os.path.exists(leftover):
                os.remove(leftover)
        connection = self._connect(new)
        try:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("BEGIN")
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute("COMMIT")
            # `close` would also do this, but would not report a full disk.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.close()
        _sync(new)
        os.rename(new, self._path)
        _sync(os.path.dirname(self._path) or ".")

    def _prepare(self, connection: "sqlite3.Connection") -> Loaded:
        # An exclusive lock before the first access keeps the index of the write-ahead log in
        # memory, and prevents a second process from opening the file.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("BEGIN IMMEDIATE")
        self._check(connection)
        loaded = self._load(connection)
        connection.execute("ROLLBACK")
        return loaded

    def _check(self, connection: "sqlite3.Connection") -> None:
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StoreFileError(
                f"The file {self._path} is a database, but not a Headrace store. Choose another "
                "data directory."
            )
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT:
            raise StoreFileError(
                f"The store {self._path} was written by a newer Headrace (format {version}; this "
                f"version reads {FORMAT}). Start that version."
            )
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise self._damaged(str(verdict))

    def _load(self, connection: "sqlite3.Connection") -> Loaded:
        epoch = connection.execute("SELECT value FROM epoch").fetchone()[0]
        rows = connection.execute(
            "SELECT path, data, czxid, mzxid, pzxid, version, cversion FROM node"
        )
        nodes = [
            (path, Node(bytes(data), Stat(czxid, mzxid, pzxid, version, cversion, PERSISTENT)))
            for path, data, czxid, mzxid, pzxid, version, cversion in rows
        ]
        return Loaded(epoch, nodes)

    def _damaged(self, reason: str) -> StoreFileError:
        return StoreFileError(
            f"The store {self._path} is damaged ({reason.splitlines()[-1].rstrip('.')}). Restore a "
            "copy of it, or move it away to start without its topics and settings."
        )

    def _error_of(self, error: "sqlite3.Error") -> StoreFileError:
        import sqlite3

        # The low byte is the primary code; the rest is an extended code.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreFileError(
                f"The store {self._path} is in use by another process. Stop that process, or "
                "choose another data directory."
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self._damaged(str(error))
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return StoreFileError(
                f"The store {self._path} cannot be written ({error}). Give this user write "
                f"permission for {os.path.dirname(self._path) or '.'}."
            )
        if code == sqlite3.SQLITE_FULL:
            return StoreFileError(
                f"No space is left for the store {self._path}. Free some space, then start again."
            )
        return StoreFileError(f"The store {self._path} cannot be used: {error}.")

    def commit(self, changes: Iterable[Change], epoch: int | None) -> None:
        """Durably write the durable ones of these changes. Raises StoreFull or OSError."""
        import sqlite3

        connection = self._connection
        if connection is None or self._has_failed:
            raise OSError(f"The store {self._path} failed before and accepts no more writes.")
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._write(connection, changes, epoch)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL and self._rolled_back(connection):
                raise StoreFull(
                    f"No space is left for the store {self._path}. Free some space, then try again."
                ) from None
            self._has_failed = True
            raise OSError(f"The store {self._path} cannot be written: {error}.") from error

    def _write(
        self, connection: "sqlite3.Connection", changes: Iterable[Change], epoch: int | None
    ) -> None:
        if epoch is not None:
            connection.execute("UPDATE epoch SET value = ?", (epoch,))
        for path, node in {c.path: c.node for c in changes if c.is_durable}.items():
            if node is None:
                connection.execute("DELETE FROM node WHERE path = ?", (path,))
                continue
            stat = node.stat
            connection.execute(
                "INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?, ?, ?)",
                (path, node.data, stat.czxid, stat.mzxid, stat.pzxid, stat.version, stat.cversion),
            )

    def _rolled_back(self, connection: "sqlite3.Connection") -> bool:
        import sqlite3

        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
