"""Registers this broker, finds the controller, and follows changes in the store.

Owns the session with the store, the watches, and one task that reads the store after watch events.
One event can stand for several changes, so the task does not rely on its content: it reads the
watched node again.

1. Only this task reads, so that an older result never replaces a newer one. It reads several topics
   concurrently. It sets a watch before or with the read of a node, so that it misses no change.
2. After each reconnect, even within a session, the task reads everything again.
3. When the registration is lost, the listeners of the image are called immediately. This broker has
   no epoch until it is registered again (B7).
4. A new controller acts only after it has read everything under its own controller epoch (B8).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable

from headrace.cluster import store_elections, store_reader
from headrace.cluster.candidacy import Candidacy
from headrace.cluster.changes import ImageChange
from headrace.cluster.controller_role import ControllerRole
from headrace.cluster.keyed_locks import KeyedLocks
from headrace.cluster.live_image import LiveImage
from headrace.cluster.pending_reads import PendingReads, StatePart
from headrace.cluster.store_elections import Election
from headrace.coordination import layout
from headrace.coordination.port import (
    SessionState,
    Store,
    StoreError,
    StoreUnavailable,
    WatchEvent,
)
from headrace.coordination.retries import retry
from headrace.model.backoff import backoff
from headrace.model.cluster import Endpoint
from headrace.model.errors import ApiError
from headrace.model.topics import collision_key
from headrace.runtime.gather_bounded import gather_bounded

_NONE_APPLIED = -1
_FORMER_SESSIONS_MAX = 10
_RETRY_S_MIN = 0.05
_RETRY_S_MAX = 1.0
_EXPECTED_ERRORS = (StoreUnavailable, StoreError, ApiError, layout.LayoutError)
_log = logging.getLogger(__name__)


class Registration:
    def __init__(
        self,
        store: Store,
        node_id: int,
        live_image: LiveImage,
        role: ControllerRole,
        locks: KeyedLocks,
        registration_wait_s: float,
        looks_dead: store_elections.LooksDead,
        *,
        elected: Callable[[bool], None],
        registered: Callable[[int], None],
        delete_controller_node: Callable[[], Awaitable[None]],
    ) -> None:
        """`elected` is called each time this broker has read everything as the controller: with
        True after its election, with False after a reconnect. `registered` is called with each new
        broker epoch.
        """
        self.broker_epoch = -1
        """The epoch of the registration; -1 while this broker is not registered."""
        self.last_epoch = -1
        """The epoch of the present or last registration of this process; -1 before the first."""
        self._proof = store_elections.DirectoryProof()
        self._has_lost_data = False
        self.registered_ms = 0
        """By the store's clock; 0 if the store uses the broker's clock."""
        self.election = Election(-1, 0, None)
        self._store = store
        self._node_id = node_id
        self._live_image = live_image
        self._role = role
        self._locks = locks
        self._registration_wait_s = registration_wait_s
        self._elected = elected
        self._registered = registered
        self._delete_controller_node = delete_controller_node
        self._address: tuple[tuple[Endpoint, ...], str | None] = ((), None)
        """The endpoints and the rack of this broker."""
        self._looks_dead = looks_dead
        self._session_id = 0
        """The session that created the registration; 0 before the first."""
        self._former_sessions: list[int] = []
        """Sessions of this process or of a dead process, which can still have nodes."""
        self._last_applied_change = _NONE_APPLIED
        """The number of the last row of `/changes` that the image contains."""
        self._pending_reads = PendingReads()
        self._candidacy = Candidacy(
            lambda: self._pending_reads.request(StatePart.CONTROLLER),
        )
        self._task: asyncio.Task[None] | None = None

    async def start(
        self, endpoints: Iterable[Endpoint], rack: str | None, proof: store_elections.DirectoryProof
    ) -> None:
        self._address = (tuple(endpoints), rack)
        self._proof = proof
        # Before the registration, so that no event during it is missed.
        self._store.on_session(self._session_changed)
        await retry(self._register_and_read, self._registration_wait_s)
        self._task = asyncio.get_running_loop().create_task(self._follow_store())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._candidacy.stop()
        self._pending_reads.cancel()

    async def refresh(self) -> None:
        """Wait until the image contains all changes that were written before this call."""
        await self._store.sync()
        await self._pending_reads.wait_for(StatePart.CHANGES)

    def note_lost_data(self) -> None:
        """A log of this process has failed: later registrations do not prove that data was kept."""
        self._has_lost_data = True

    def look_for_controller(self, dead: Election | None = None) -> None:
        """Read which broker is the controller; `dead` is a controller whose process is dead."""
        self._candidacy.note_dead_controller(dead)
        self._pending_reads.request(StatePart.CONTROLLER)

    def resign(self) -> None:
        """Stop being the controller, and do not become it again for candidacy.PAUSE_S."""
        self._candidacy.must_resign = True
        self._pending_reads.request(StatePart.CONTROLLER)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._drop_registration()
        elif state is SessionState.CONNECTED:
            self._pending_reads.request(StatePart.EVERYTHING)

    def _drop_registration(self) -> None:
        self._role.drop()
        if self._session_id not in (0, self._store.session_id):
            former_sessions = [*self._former_sessions, self._session_id]
            self._former_sessions = former_sessions[-_FORMER_SESSIONS_MAX:]
        if self.broker_epoch != -1:
            self.broker_epoch = -1
            self._live_image.notify(ImageChange(is_lost=True))

    def _brokers_changed(self, _: WatchEvent) -> None:
        self._pending_reads.request(StatePart.BROKERS)

    def _controller_changed(self, _: WatchEvent) -> None:
        self._pending_reads.request(StatePart.CONTROLLER)

    def _change_list_changed(self, _: WatchEvent) -> None:
        self._pending_reads.request(StatePart.CHANGES)

    async def _follow_store(self) -> None:
        failures = 0
        while True:
            read = await self._pending_reads.next()
            try:
                await self._read(read.parts)
            except Exception as error:  # noqa: BLE001 - this broker must follow the store again
                self._pending_reads.add_again(read)
                # Without a connection, the next reconnect requests a read.
                if self._store.state is SessionState.CONNECTED:
                    bug = None if isinstance(error, _EXPECTED_ERRORS) else error
                    _log.warning("image not updated, retrying: error=%s", error, exc_info=bug)
                    failures += 1
                    await asyncio.sleep(backoff(_RETRY_S_MIN, _RETRY_S_MAX, failures))
                    self._pending_reads.retry()
                continue
            failures = 0
            read.finish()

    async def _read(self, parts: Collection[StatePart]) -> None:
        if StatePart.EVERYTHING in parts:
            await self._register_and_read()
            return
        if StatePart.BROKERS in parts:
            await self._live_image.read_brokers(self._brokers_changed)
            if not self._is_registered():
                await self._register_and_read()
                return
        if StatePart.CONTROLLER in parts:
            await self._read_controller()
        if StatePart.CHANGES in parts:
            await self._read_changes()

    def _is_registered(self) -> bool:
        info = self._live_image.image.brokers.get(self._node_id)
        return info is not None and info.epoch == self.broker_epoch

    async def _register_and_read(self) -> None:
        """Register if this broker is not registered, then read everything."""
        stat = await self._store.exists(layout.broker_path(self._node_id))
        if stat is None or stat.czxid != self.broker_epoch:
            self._drop_registration()
            if self._has_lost_data:
                self._proof = self._proof._replace(kept_epoch=-1)
            stat = await store_elections.register(
                self._store,
                self._node_id,
                self._registration_document,
                self._proof,
                self._former_sessions,
                self._registration_wait_s,
                self._looks_dead,
            )
            self._session_id = self._store.session_id
            self.broker_epoch = self.last_epoch = stat.czxid
            self.registered_ms = stat.created_ms
            self._proof = self._proof._replace(kept_epoch=stat.czxid, last_epoch=stat.czxid)
            self._registered(stat.czxid)
        await self._live_image.read_brokers(self._brokers_changed)
        if not self._is_registered():
            # The registration was removed between the two reads. No watch event follows, so read
            # again.
            self._pending_reads.request(StatePart.BROKERS)
        await self._read_controller(reads_all=True)

    def _registration_document(self, history: layout.DirectoryHistory) -> bytes:
        return layout.encode_broker(
            *self._address,
            self._proof.kept_epoch,
            history,
            is_restarted=self.last_epoch == -1,
        )

    async def _read_controller(self, *, reads_all: bool = False) -> None:
        """Read which broker is the controller; with `reads_all` or as a new one, also all else."""
        dead = self._candidacy.take_dead_controller()
        await self._store.exists(layout.CONTROLLER, self._controller_changed)
        if self._candidacy.must_resign:
            await self._resign()
        election = await store_elections.elect(
            self._store,
            self._node_id,
            dead,
            former_sessions=self._former_sessions,
            is_candidate=self._candidacy.is_candidate,
        )
        if election.fence is None:
            self._role.drop()
            if reads_all:
                await self._read_all()
        elif not self._role.is_held_under(election.fence):
            self._role.drop()
            changes = await self._read_all()
            self._role.take(election.fence, election.controller_epoch, changes)
        elif reads_all:
            await self._read_all()
        is_new = election != self.election
        self.election = election
        if election.fence is not None and (is_new or reads_all):
            self._elected(is_new)
        if is_new:
            self._live_image.set_controller(election.controller_id)

    async def _resign(self) -> None:
        self._candidacy.must_resign = False
        if not self._role.is_controller:
            return
        await self._delete_controller_node()
        self._role.drop()
        self._candidacy.start_pause()

    async def _read_all(self) -> layout.ChangeLog:
        """Read topics, settings, users, ACLs, tokens and quotas; return the list of changes."""
        changes = await store_reader.read_changes(self._store, self._change_list_changed)
        await self._live_image.read_broker_configs()
        await self._live_image.read_group_configs()
        await self._read_users()
        await self._read_acls()
        await self._live_image.read_tokens()
        await self._live_image.read_quotas()
        await gather_bounded(self._read_topic, await self._live_image.topic_names())
        self._last_applied_change = changes.last
        return changes

    async def _read_changes(self) -> None:
        changes = await store_reader.read_changes(self._store, self._change_list_changed)
        # The image of the controller already contains its own writes.
        if not self._role.is_controller:
            rows = changes.since(self._last_applied_change)
            if rows is None:  # The list no longer contains all changes since then.
                await self._read_all()
                return
            await self._read_changed(rows)
        self._last_applied_change = changes.last

    async def _read_changed(self, rows: Iterable[layout.ChangeRow]) -> None:
        """Read the nodes that these rows of `/changes` name."""
        changed = dict.fromkeys(rows)
        topics = [row.name for row in changed if row.kind in ("topic", "config")]
        if any(row.kind == "broker" for row in changed):
            await self._live_image.read_broker_configs()
        if any(row.kind == "group" for row in changed):
            await self._live_image.read_group_configs()
        users = [row.name for row in changed if row.kind == "user"]
        if users:
            await self._read_users(users)
        acls = [int(row.name, 16) for row in changed if row.kind == "acl"]
        if acls:
            await self._read_acls(acls)
        tokens = [row.name for row in changed if row.kind == "token"]
        if tokens:
            await self._live_image.read_tokens(tokens)
        quotas = [layout.entity_of_path(row.name) for row in changed if row.kind == "quota"]
        if quotas:
            await self._live_image.read_quotas(quotas)
        await gather_bounded(self._read_topic, dict.fromkeys(topics))
        nodes_of_states: dict[str, list[int]] = {}
        for row in changed:
            if row.kind == "states" and row.name not in topics:
                nodes_of_states.setdefault(row.name, []).append(row.first)
        await gather_bounded(self._read_states, nodes_of_states.items())

    async def _read_topic(self, name: str) -> None:
        async with self._locks.hold(collision_key(name)):
            await self._live_image.read_topic(name)

    async def _read_users(self, names: Iterable[str] | None = None) -> None:
        # Without the lock, the result of this read could replace the newer one of a write.
        async with self._locks.hold(layout.USER_CONFIGS):
            await self._live_image.read_users(names)

    async def _read_acls(self, nodes: Iterable[int] | None = None) -> None:
        async with self._locks.hold(layout.ACLS):
            await self._live_image.read_acls(nodes)

    async def _read_states(self, nodes_of_topic: tuple[str, list[int]]) -> None:
        """Read some nodes with partition states of a topic, each named by its first partition."""
        name, firsts = nodes_of_topic
        async with self._locks.hold(collision_key(name)):
            for first in firsts:
                await self._live_image.read_states(name, first)
