"""ZooKeeper with credentials, node ACLs and TLS."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from headrace.coordination import layout
from headrace.coordination.access import ZooKeeperAccess, read_digest
from headrace.coordination.former_session import Session, end_session
from headrace.coordination.node_acl import WRITE_PERMISSIONS
from headrace.coordination.port import AccessDenied, Create, StoreUnavailable
from headrace.coordination.zookeeper import ZooKeeperStore
from headrace.ensemble.zookeeper import LocalZooKeeper, free_port
from headrace.testing.cluster import RunningCluster, host_of
from tests.broker.raw import eventually

ACCESS = ZooKeeperAccess("mill:wheel", sets_acls=True)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZooKeeper]:
    zookeeper = LocalZooKeeper(tmp_path_factory.mktemp("zookeeper"), [free_port()], durable=False)
    zookeeper.start()
    yield zookeeper
    zookeeper.kill()


@pytest.fixture
def stranger(zookeeper: LocalZooKeeper) -> Iterator[KazooClient]:
    """A client without credentials."""
    client = KazooClient(zookeeper.connect)
    client.start(timeout=30)
    yield client
    client.stop()
    client.close()


def open_nodes(client: KazooClient, path: str) -> list[str]:
    """The nodes below a path that every client can change."""
    acls, _ = client.get_acls(path)
    found = [path for acl in acls if acl.id.scheme == "world" and acl.perms & WRITE_PERMISSIONS]
    for name in client.get_children(path):
        if (path, name) != ("/", "zookeeper"):
            found += open_nodes(client, f"{path.rstrip('/')}/{name}")
    return found


def nodes(client: KazooClient, path: str) -> list[str]:
    names = [name for name in client.get_children(path) if (path, name) != ("/", "zookeeper")]
    below = [f"{path.rstrip('/')}/{name}" for name in names]
    return [path, *(node for each in below for node in nodes(client, each))]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_no_node_is_world_writable_after_a_full_exercise(tmp_path: Path) -> None:
    digest = tmp_path / "digest"
    digest.write_text("mill:wheel")
    digest.chmod(0o600)
    settings = {
        "headrace.zookeeper.digest.file": str(digest),
        "zookeeper.set.acl": "true",
        "offsets.topic.num.partitions": "3",
        "offsets.topic.replication.factor": "2",
    }
    listeners = {
        node: f"PLAINTEXT://{host_of(node)}:{free_port(host_of(node))},"
        f"SASL_PLAINTEXT://{host_of(node)}:{free_port(host_of(node))}"
        for node in (1, 2)
    }
    with RunningCluster.start(
        tmp_path / "cluster",
        brokers=2,
        settings=settings,
        settings_of={node: {"listeners": text} for node, text in listeners.items()},
    ) as cluster:
        exercise(",".join(text.split(",")[0][len("PLAINTEXT://") :] for text in listeners.values()))
        cluster.kill(1)
        cluster.restart(1)
        client = KazooClient(cluster.zookeeper.connect, auth_data=[("digest", "mill:wheel")])
        client.start(timeout=30)
        try:
            assert {
                "/brokers/topics/mill/state-0",
                "/brokers/ids/2",
                "/config/users/alice",
                "/config/topics/mill",
                "/config/brokers/1",
                "/cluster/secret",
                "/controller",
                "/producer_ids",
            } <= set(nodes(client, "/"))
            assert open_nodes(client, "/") == []
        finally:
            client.stop()
            client.close()
        outsider = KazooClient(cluster.zookeeper.connect)
        outsider.start(timeout=30)
        try:
            outsider.get("/brokers/topics/mill")
            for path in ("/config/users/alice", "/config/brokers/1", "/cluster/secret"):
                with pytest.raises(NoAuthError):
                    outsider.get(path)
            for path in ("/controller", "/changes", "/brokers/ids/1"):
                with pytest.raises(NoAuthError):
                    outsider.delete(path)
                with pytest.raises(NoAuthError):
                    outsider.set(path, b"")
            with pytest.raises(NoAuthError):
                outsider.create("/stranger")
        finally:
            outsider.stop()
            outsider.close()


def exercise(bootstrap: str) -> None:
    """Use each kind of node: topics, settings, users, producer ids, groups."""
    options = {"bootstrap.servers": bootstrap, "log_level": 0}
    admin = AdminClient(options)
    for future in admin.create_topics(
        [NewTopic("mill", 3, 2, config={"retention.ms": "900000"}), NewTopic("removed", 1, 1)]
    ).values():
        future.result(60)
    user = UserScramCredentialUpsertion(
        "alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret"
    )
    for changed in admin.alter_user_scram_credentials([user]).values():
        changed.result(60)
    entry = ConfigEntry(
        "max.connections.per.ip", "500", incremental_operation=AlterConfigOpType.SET
    )
    for changed in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])]
    ).values():
        changed.result(60)
    for future in admin.delete_topics(["removed"]).values():
        future.result(60)
    producer = Producer({**options, "enable.idempotence": True})
    producer.produce("mill", b"turn")
    assert producer.flush(60) == 0
    consumer = Consumer({**options, "group.id": "millers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["mill"])
    eventually("a record is consumed", lambda: consumer.poll(1.0) is not None)
    consumer.commit(asynchronous=False)
    consumer.close()


def test_other_credentials_are_denied_with_a_sentence(zookeeper: LocalZooKeeper) -> None:
    async def scenario() -> None:
        owner = await ZooKeeperStore.open(zookeeper.connect + "/denied", access=ACCESS)
        await owner.create("/cluster")
        await owner.create(layout.CLUSTER_SECRET, b"planted")
        for access in (ZooKeeperAccess(), ZooKeeperAccess("mill:guess")):
            other = await ZooKeeperStore.open(zookeeper.connect + "/denied", access=access)
            assert await other.children("/") == ["cluster"]
            with pytest.raises(AccessDenied, match=r"headrace\.zookeeper\.digest\.file"):
                await other.get(layout.CLUSTER_SECRET)
            with pytest.raises(AccessDenied):
                await other.create("/other")
            with pytest.raises(AccessDenied):
                await other.multi([Create("/other")])
            with pytest.raises(AccessDenied):
                await other.delete(layout.CLUSTER_SECRET)
            await other.close()
        await owner.close()

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_broker_without_the_credentials_stops_with_a_sentence(
    zookeeper: LocalZooKeeper, tmp_path: Path
) -> None:
    async def prepare() -> None:
        owner = await ZooKeeperStore.open(zookeeper.connect + "/owned", access=ACCESS)
        await owner.create("/cluster")
        await owner.close()

    asyncio.run(asyncio.wait_for(prepare(), 60))
    file = tmp_path / "broker.properties"
    file.write_text(
        f"listeners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}/data\n"
        f"zookeeper.connect={zookeeper.connect}/owned\n"
    )
    ended = command("broker", str(file))
    assert ended.returncode == 1
    assert "headrace: ZooKeeper denies access to /" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_secure_protects_an_existing_tree_and_undo_opens_it_again(
    zookeeper: LocalZooKeeper, stranger: KazooClient, tmp_path: Path
) -> None:
    for path in ("/old", "/old/cluster", "/old/cluster/secret", "/old/config/users/alice"):
        stranger.ensure_path(path)
    digest = tmp_path / "digest"
    digest.write_text("mill:wheel")
    digest.chmod(0o600)
    file = tmp_path / "broker.properties"
    file.write_text(
        f"zookeeper.connect={zookeeper.connect}/old\nheadrace.zookeeper.digest.file={digest}\n"
    )
    secured = command("zookeeper", "secure", "--config", str(file))
    assert secured.stdout.startswith("Only these credentials can change 6 nodes"), secured
    assert "zookeeper.set.acl=true" in secured.stdout
    with pytest.raises(NoAuthError):
        stranger.get("/old/cluster/secret")
    with pytest.raises(NoAuthError):
        stranger.get_children("/old/config/users")
    with pytest.raises(NoAuthError):
        stranger.create("/old/config/topics")
    stranger.get("/old/cluster")
    digest.write_text("mill:other")
    denied = command("zookeeper", "secure", "--undo", "--config", str(file))
    assert (denied.returncode, "denies access" in denied.stderr) == (1, True)
    digest.write_text("mill:wheel")
    assert command("zookeeper", "secure", "--undo", "--config", str(file)).returncode == 0
    assert len(open_nodes(stranger, "/old")) == 6


def test_the_first_user_is_created_with_the_credentials_of_a_broker(
    zookeeper: LocalZooKeeper, stranger: KazooClient, tmp_path: Path
) -> None:
    digest = tmp_path / "digest"
    digest.write_text("mill:wheel")
    digest.chmod(0o600)
    file = tmp_path / "broker.properties"
    file.write_text(
        f"zookeeper.connect={zookeeper.connect}/first\nzookeeper.set.acl=true\n"
        f"headrace.zookeeper.digest.file={digest}\n"
    )
    arguments = ("users", "bootstrap", "admin", "--generate", "--zookeeper-config", str(file))
    created = command(*arguments)
    assert created.returncode == 0, created.stderr
    with pytest.raises(NoAuthError):
        stranger.get("/first/config/users/admin")
    assert "already exists" in command(*arguments).stderr


class TlsProxy:
    """Accepts TLS and forwards the bytes to a ZooKeeper without TLS."""

    def __init__(self, target: int, context: ssl.SSLContext) -> None:
        self._target = target
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.accepted_count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            tls = self._context.wrap_socket(connection, server_side=True)
        except OSError:
            connection.close()
            return
        self.accepted_count += 1
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            tls.close()
            return
        tls.settimeout(0.02)
        server.settimeout(0.02)
        # One thread for both directions: OpenSSL allows one at a time.
        while self._copied(tls, server) and self._copied(server, tls):
            pass
        tls.close()
        server.close()

    def _copied(self, source: socket.socket, target: socket.socket) -> bool:
        try:
            data = source.recv(65536)
        except TimeoutError:
            return True
        except OSError:
            return False
        if not data:
            return False
        target.settimeout(10)
        target.sendall(data)
        target.settimeout(0.02)
        return True


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-signed certificates, each with its key in the same file."""
    directory = tmp_path_factory.mktemp("certificates")
    make_certificate(directory / "local.pem", "IP:127.0.0.1")
    make_certificate(directory / "elsewhere.pem", "DNS:elsewhere.example")
    return directory


def make_certificate(file: Path, name: str) -> None:
    key = file.with_suffix(".key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=zookeeper", "-addext"),
            *(f"subjectAltName={name}", "-keyout", str(key), "-out", str(file)),
        ],
        check=True,
        capture_output=True,
    )
    file.write_text(file.read_text() + key.read_text())


def tls_to(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificate)
    return context


def tls_proxy(zookeeper: LocalZooKeeper, certificate: Path) -> TlsProxy:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return TlsProxy(zookeeper.nodes[0].port, context)


def test_a_store_works_over_tls(zookeeper: LocalZooKeeper, certificates: Path) -> None:
    certificate = certificates / "local.pem"
    proxy = tls_proxy(zookeeper, certificate)
    access = ZooKeeperAccess("mill:wheel", sets_acls=True, tls=tls_to(certificate))
    connect = f"127.0.0.1:{proxy.port}"

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            store = await ZooKeeperStore.open(
                connect + "/tls", session_timeout_ms=40_000, access=access
            )
            stack.push_async_callback(store.close)
            large = os.urandom(900_000)
            await store.create("/large", large)
            sets = [store.set("/large", b"%d" % turn) for turn in range(200)]
            await asyncio.gather(*sets)
            await store.set("/large", large)
            assert (await store.get("/large"))[0] == large
            await store.create("/one", ephemeral=True)
            other = await ZooKeeperStore.open(connect + "/tls", access=access)
            stack.push_async_callback(other.close)
            # The session of a killed process is ended over TLS as well. An attempt ends early if
            # the machine is busy, because it has a short time limit.
            session = Session(store.session_id, store._client._session_passwd)
            while await other.exists("/one") is not None:
                await end_session(connect, session, access.tls)

    try:
        asyncio.run(asyncio.wait_for(scenario(), 150))
        assert proxy.accepted_count >= 3
    finally:
        proxy.close()


@pytest.mark.parametrize(
    ("server", "trusted"), [("elsewhere", "elsewhere"), ("local", "elsewhere")]
)
def test_a_certificate_for_another_host_or_of_another_authority_is_rejected(
    zookeeper: LocalZooKeeper, certificates: Path, server: str, trusted: str
) -> None:
    proxy = tls_proxy(zookeeper, certificates / f"{server}.pem")
    access = ZooKeeperAccess("mill:wheel", tls=tls_to(certificates / f"{trusted}.pem"))

    async def scenario() -> None:
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            await ZooKeeperStore.open(
                f"127.0.0.1:{proxy.port}", connection_timeout_ms=3000, access=access
            )

    try:
        asyncio.run(asyncio.wait_for(scenario(), 60))
        assert proxy.accepted_count == 0
    finally:
        proxy.close()


def test_files_of_an_ensemble_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "zookeeper-1"
    zookeeper = LocalZooKeeper(tmp_path, [free_port()], durable=False)
    zookeeper.start()
    try:
        client = KazooClient(zookeeper.connect)
        client.start(timeout=30)
        client.create("/one")
        client.stop()
        client.close()
        assert files_with_other_modes(directory) == []
        assert directory.stat().st_mode & 0o777 == 0o700
    finally:
        zookeeper.kill()


def files_with_other_modes(directory: Path) -> list[str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert len(files) >= 3
    return [f"{path} {path.stat().st_mode:o}" for path in files if path.stat().st_mode & 0o077]


def test_files_of_an_earlier_version_become_private(tmp_path: Path) -> None:
    zookeeper = LocalZooKeeper(tmp_path, [free_port()], durable=False)
    zookeeper.start()
    zookeeper.stop()
    directory = tmp_path / "zookeeper-1"
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    zookeeper.start()
    try:
        assert files_with_other_modes(directory) == []
    finally:
        zookeeper.kill()


def test_up_secures_its_ensemble_if_acls_are_wanted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    up = ("up", "--brokers", "1", "--port", "0", "--data", str(data), "--detach")
    for settings in ((), ("--set", "zookeeper.set.acl=true")):
        started = command(*up, *settings)
        assert started.returncode == 0, started.stderr
        try:
            digest = data / "zookeeper.digest"
            properties = (data / "broker-1.properties").read_text()
            connect = next(
                line.partition("=")[2]
                for line in properties.splitlines()
                if line.startswith("zookeeper.connect=")
            )
            auth = [("digest", read_digest(str(digest)))] if settings else None
            client = KazooClient(connect, auth_data=auth)
            client.start(timeout=30)
            is_open = "/brokers/topics" in open_nodes(client, "/")
            assert bool(open_nodes(client, "/zookeeper")) == is_open
            client.stop()
            client.close()
            assert is_open is not bool(settings)
            assert (data / "broker-1.properties").stat().st_mode & 0o777 == 0o600
        finally:
            assert command("down", "--data", str(data)).returncode == 0
