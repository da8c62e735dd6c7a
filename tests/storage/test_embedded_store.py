"""The embedded store and its file: crashes, damage, full disks, and how often it syncs."""

import asyncio
import logging
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.coordination.database import Database, StoreFileError
from headrace.coordination.embedded import EmbeddedServer, EmbeddedStore
from headrace.coordination.port import (
    Create,
    SessionExpired,
    SessionState,
    Set,
    StoreFull,
    UnknownOutcome,
)
from headrace.coordination.tree import Change

WRITER = """
import asyncio, sys
from headrace.coordination.embedded import EmbeddedStore
from headrace.coordination.port import Create, NodeExists, Set

async def main():
    store = await EmbeddedStore.open(sys.argv[1])
    stat = await store.create("/life", ephemeral=True)
    for path in ("/left", "/right", "/log"):
        if await store.exists(path) is None:
            await store.create(path, b"0")
    turn = int((await store.get("/left"))[0])
    print("life", stat.czxid, flush=True)
    while True:
        turn += 1
        data = b"%d" % turn
        both = store.multi([Set("/left", data), Set("/right", data)])
        await asyncio.gather(both, store.create(f"/log/{turn}", data * 500))
        print(turn, flush=True)

asyncio.run(main())
"""


def test_kill_keeps_acknowledged_writes_and_multis_are_atomic(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "store.db")
    epochs: list[int] = []
    for acknowledged_min in (1, 2, 40, 150):
        acknowledged, epoch = _run_and_kill(path, acknowledged_min)
        epochs.append(epoch)
        asyncio.run(_check_after_kill(path, acknowledged))
    assert epochs == sorted(set(epochs))


def _run_and_kill(path: str, acknowledged_min: int) -> tuple[int, int]:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child:
        epoch = int(child.stdout.readline().split()[1])
        acknowledged = [int(child.stdout.readline()) for _ in range(acknowledged_min)]
        child.send_signal(signal.SIGKILL)
        # The last output before the kill was also acknowledged.
        acknowledged += [int(line) for line in child.stdout.read().splitlines(keepends=True)]
    return acknowledged[-1], epoch


async def _check_after_kill(path: str, acknowledged: int) -> None:
    store = await EmbeddedStore.open(path)
    left, stat = await store.get("/left")
    assert (await store.get("/right"))[0] == left
    assert acknowledged <= int(left) <= acknowledged + 1
    assert stat.version == int(left)
    turns = sorted(int(name) for name in await store.children("/log"))
    assert turns[:acknowledged] == list(range(1, acknowledged + 1))
    assert await store.exists("/life") is None
    await store.close()


def test_files_that_a_killed_process_left_become_private(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    _run_and_kill(str(path), 2)
    files = (path, tmp_path / "store.db-wal")
    for file in files:
        file.chmod(0o644)  # As an earlier version created them.
    database = Database(str(path))
    database.open()
    try:
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    finally:
        database.close()


def test_log_file_cut_anywhere_has_the_writes_before_the_cut(tmp_path: Path) -> None:
    async def write(path: str) -> None:
        server = await EmbeddedServer.open(path)
        store = server.session()
        for turn in range(8):
            await store.multi([Create(f"/n{turn}", b"x" * 100), Create(f"/m{turn}")])
        shutil.copytree(tmp_path / "live", tmp_path / "dead")
        await server.close()

    async def read(path: str) -> int:
        store = await EmbeddedStore.open(path)
        names = await store.children("/")
        await store.close()
        count = len(names) // 2
        assert names == sorted(f"{kind}{turn}" for kind in "mn" for turn in range(count))
        return count

    (tmp_path / "live").mkdir()
    asyncio.run(write(str(tmp_path / "live" / "store.db")))
    log = tmp_path / "dead" / "store.db-wal"
    whole = log.read_bytes()
    counts = []
    for cut in range(0, len(whole) + 1, 511):
        case = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "dead", case)
        (case / "store.db-wal").write_bytes(whole[:cut])
        counts.append(asyncio.run(read(str(case / "store.db"))))
        shutil.rmtree(case)
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] in (7, 8)
    assert asyncio.run(read(str(tmp_path / "dead" / "store.db"))) == 8


def _refusal(path: Path) -> str:
    with pytest.raises(StoreFileError) as refused:
        asyncio.run(EmbeddedStore.open(str(path)))
    sentence = str(refused.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def test_file_that_is_not_a_database_is_named_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"certainly not a database" * 500)
    assert "damaged" in _refusal(path)
    assert path.read_bytes() == b"certainly not a database" * 500


def test_a_garbled_database_is_named_in_one_sentence(tmp_path: Path) -> None:
    async def write(path: str) -> None:
        store = await EmbeddedStore.open(path)
        for turn in range(200):
            await store.create(f"/n{turn}", b"x" * 300)
        await store.close()

    path = tmp_path / "store.db"
    asyncio.run(write(str(path)))
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    assert "damaged" in _refusal(path)


def test_a_foreign_or_newer_database_is_rejected(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE other (x)")
    connection.close()
    assert "not a Headrace store" in _refusal(foreign)

    newer = tmp_path / "newer.db"
    asyncio.run(_open_and_close(str(newer)))
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    assert "newer" in _refusal(newer)


async def _open_and_close(path: str) -> None:
    await (await EmbeddedStore.open(path)).close()


def test_missing_directory_is_named_in_one_sentence(tmp_path: Path) -> None:
    _refusal(tmp_path / "missing" / "store.db")


def test_store_in_use_is_rejected_and_its_owner_continues(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child:
        child.stdout.readline()
        assert "in use" in _refusal(path)
        before = int(child.stdout.readline())
        assert int(child.stdout.readline()) == before + 1
        child.kill()


class CountedDatabase(Database):
    """Counts commits, and fails those that the test selects."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.commits = 0
        self.failure: Exception | None = None

    def commit(self, changes: Iterable[Change], epoch: int | None) -> None:
        self.commits += 1
        if self.failure is not None:
            raise self.failure
        super().commit(changes, epoch)


async def _server(database: Database) -> EmbeddedServer:
    return await EmbeddedServer.open_database(database, ThreadPoolExecutor(1))


def test_writes_that_wait_together_share_a_commit_and_ephemerals_need_none(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        database = CountedDatabase(str(tmp_path / "store.db"))
        server = await _server(database)
        store = server.session()
        await asyncio.gather(*(store.create(f"/n{turn}") for turn in range(100)))
        assert database.commits == 1
        await store.create("/e", ephemeral=True)
        await store.set("/e", b"x")
        await store.delete("/e")
        assert database.commits == 1
        await server.close()
        assert database.commits == 1

    asyncio.run(scenario())


def test_full_disk_rejects_a_write_and_accepts_one_when_it_has_space_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        database = CountedDatabase(str(tmp_path / "store.db"))
        server = await _server(database)
        store = server.session()
        await store.create("/a", b"old")
        database.failure = StoreFull("no space")
        outcomes = await asyncio.gather(
            store.set("/a", b"new"), store.create("/b"), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [StoreFull] * 2
        assert (await store.get("/a"))[0] == b"old"
        database.failure = None
        assert (await store.set("/a", b"new", 0)).version == 1
        await store.create("/b")
        await server.close()

    asyncio.run(scenario())
    told = [record.getMessage() for record in caplog.records if "embedded" in record.name]
    assert told == ["no space", "store has free space again"]


def test_sqlite_running_out_of_pages_is_a_full_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        database = Database(str(tmp_path / "store.db"))
        server = await _server(database)
        store = server.session()
        await store.create("/a")
        assert database._connection is not None
        database._connection.execute("PRAGMA max_page_count=10")
        with pytest.raises(StoreFull, match=r"store\.db\. Free some space, then try again"):
            await store.create("/b", bytes(100_000))
        await store.create("/c")
        assert await store.children("/") == ["a", "c"]
        await server.close()

    asyncio.run(scenario())


def test_failed_sync_stops_acknowledgements(tmp_path: Path) -> None:
    async def scenario() -> None:
        database = CountedDatabase(str(tmp_path / "store.db"))
        server = await _server(database)
        store = server.session()
        states: list[SessionState] = []
        store.on_session(states.append)
        await store.create("/a", b"old")
        database.failure = OSError("disk I/O error")
        with pytest.raises(UnknownOutcome):
            await store.set("/a", b"new")
        database.failure = None
        assert states == [SessionState.LOST]
        with pytest.raises(SessionExpired, match="disk I/O error"):
            await store.set("/a", b"newer")
        store.faults.renew()
        assert store.state is SessionState.LOST
        assert database.commits == 2
        await server.close()

    asyncio.run(scenario())


def test_multi_in_the_file_equals_the_one_in_memory(tmp_path: Path) -> None:
    async def scenario(path: str) -> None:
        store = await EmbeddedStore.open(path)
        await store.multi([Create("/a"), Create("/a/b", b"1"), Set("/a/b", b"2")])
        await store.create("/e", ephemeral=True)
        before = {p: await store.get(p) for p in ("/a", "/a/b")}
        await store.close()
        store = await EmbeddedStore.open(path)
        assert {p: await store.get(p) for p in ("/a", "/a/b")} == before
        await store.close()

    asyncio.run(scenario(str(tmp_path / "store.db")))
    connection = sqlite3.connect(tmp_path / "store.db")
    paths = [row[0] for row in connection.execute("SELECT path FROM node ORDER BY path")]
    connection.close()
    assert paths == ["/", "/a", "/a/b"]
