"""The environment of a broker: clock, disk, network, store, threads and client sockets.

Owns the choice of the real ones. A simulated environment runs the same broker with simulated time
and an unreliable network.
"""

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Protocol

from headrace.config.broker import BrokerConfig
from headrace.coordination.embedded import STORE_FILE, EmbeddedStore
from headrace.coordination.port import Store
from headrace.env.clock import Clock, SystemClock
from headrace.env.files import Files, SystemFiles
from headrace.replication.append_queue import AppendQueue
from headrace.replication.fetch_reader import FetchReader
from headrace.replication.leader_sessions import LeaderSessions
from headrace.replication.partition_table import PartitionTable
from headrace.requests.context import BrokerContext
from headrace.runtime.link import Network, SocketNetwork
from headrace.runtime.worker import Worker

SESSION_FILE = "zookeeper-session"
_logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from headrace.server.server import Server


class RequestServer(Protocol):
    """Receives requests and sends responses; see server.Server."""

    def deliver(self) -> None: ...

    def listen(self, name: str, host: str, port: int) -> int: ...

    def start(self) -> None: ...

    def reload_certificates(self) -> None: ...

    async def drain(self) -> None: ...


class Environment(Protocol):
    @property
    def clock(self) -> Clock: ...

    @property
    def files(self) -> Files: ...

    @property
    def network(self) -> Network: ...

    def entropy(self, size: int) -> bytes: ...

    def worker(self, name: str) -> Worker: ...

    def make_server(
        self,
        context: BrokerContext,
        partitions: PartitionTable,
        appends: AppendQueue,
        reader: FetchReader,
        sessions: LeaderSessions | None,
    ) -> RequestServer: ...

    async def open_store(self, config: BrokerConfig, directory: str) -> Store: ...


class RealEnvironment:
    def __init__(self, clock: Clock | None = None, files: Files | None = None) -> None:
        self.clock = clock or SystemClock()
        self.files = files or SystemFiles()
        self.network = SocketNetwork()

    def entropy(self, size: int) -> bytes:
        return os.urandom(size)

    def worker(self, name: str) -> Worker:
        return Worker(name, asyncio.get_running_loop())

    def make_server(
        self,
        context: BrokerContext,
        partitions: PartitionTable,
        appends: AppendQueue,
        reader: FetchReader,
        sessions: LeaderSessions | None,
    ) -> "Server":
        from headrace.server.server import Server

        return Server(context, partitions, appends, reader, sessions)

    async def open_store(self, config: BrokerConfig, directory: str) -> Store:
        """ZooKeeper for a cluster, else a file in the data directory."""
        if not config.is_clustered:
            return await EmbeddedStore.open(os.path.join(directory, STORE_FILE))
        from headrace.coordination.access import access_of
        from headrace.coordination.zookeeper import ZooKeeperStore

        access = access_of(config)
        if config.mechanisms and not access.sets_acls:
            _logger.warning(
                "every client of ZooKeeper can change users and become the controller: "
                "next_step='set zookeeper.set.acl, see docs/SECURITY.md'"
            )
        return await ZooKeeperStore.open(
            config.get_str("zookeeper.connect"),
            session_timeout_ms=config.get_int("zookeeper.session.timeout.ms"),
            connection_timeout_ms=config.get_optional_int("zookeeper.connection.timeout.ms"),
            session_path=os.path.join(directory, SESSION_FILE),
            access=access,
        )
