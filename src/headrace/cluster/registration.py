"""Registers this broker, finds the controller, and follows changes in the store.

Owns the session with the store, the watches, and one task that reads after watch events. The events
are hints (B9, coordination/port.py): each only names what to read again.

1. One task reads, in order, and several topics concurrently. A watch is set before the read.
2. After a reconnect, also within a session, everything is read again.
3. When the registration is lost, listeners of the image are called before anything else, and this
   broker has no epoch until it is registered again (B7).
4. A broker acts as the controller after it has read everything under its own epoch (B8).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from headrace.cluster import store_elections, store_reader
from headrace.cluster.changes import ImageChange
from headrace.cluster.controller_role import ControllerRole
from headrace.cluster.keyed_locks import KeyedLocks
from headrace.cluster.live_image import LiveImage
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

_BROKERS = "brokers"
_CONTROLLER = "controller"
_CHANGES = "changes"
_EVERYTHING = "everything"
_NEVER_SEEN = -1
_RETRY_S_MIN = 0.05
_RETRY_S_MAX = 1.0
_PAUSE_S = 2.0
_EXPECTED = (StoreUnavailable, StoreError, ApiError, layout.LayoutError)
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
        """`elected` is called when this broker, as the controller, has read everything: with True
        if it has just become the controller. `registered` is called with each new epoch.
        """
        self.broker_epoch = -1
        self.last_epoch = -1
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
        self._former_sessions: list[int] = []
        self._changes_seen = _NEVER_SEEN
        self._due: dict[str, None] = {}
        self._wakeup = asyncio.Event()
        self._refreshes: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._dead_controller: Election | None = None
        self._must_resign = False
        self._pause: asyncio.TimerHandle | None = None
        """While this timer runs, this broker does not try to become the controller."""

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
        if self._pause is not None:
            self._pause.cancel()
        for refresh in self._refreshes:
            refresh.cancel()

    async def refresh(self) -> None:
        """Wait until the image contains all changes that were written before this call."""
        refresh = asyncio.get_running_loop().create_future()
        await self._store.sync()
        self._refreshes.append(refresh)
        self._read_later(_CHANGES)
        await refresh

    def note_lost_data(self) -> None:
        """A log of this process has failed: later registrations do not prove that data was kept."""
        self._has_lost_data = True

    def look_for_controller(self, dead: Election | None = None) -> None:
        """Read which broker is the controller; `dead` is a controller whose process is dead."""
        self._dead_controller = dead
        self._read_later(_CONTROLLER)

    def resign(self) -> None:
        """Stop being the controller, and do not stand for election for some time."""
        self._must_resign = True
        self._read_later(_CONTROLLER)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._drop_registration()
        elif state is SessionState.CONNECTED:
            self._read_later(_EVERYTHING)

    def _drop_registration(self) -> None:
        self._role.drop()
        if self._session_id not in (0, self._store.session_id):
            self._former_sessions = [*self._former_sessions, self._session_id][-10:]
        if self.broker_epoch != -1:
            self.broker_epoch = -1
            self._live_image.notify(ImageChange(is_lost=True))

    def _read_later(self, what: str) -> None:
        self._due[what] = None
        self._wakeup.set()

    def _brokers_changed(self, _: WatchEvent) -> None:
        self._read_later(_BROKERS)

    def _controller_changed(self, _: WatchEvent) -> None:
        self._read_later(_CONTROLLER)

    def _change_list_changed(self, _: WatchEvent) -> None:
        self._read_later(_CHANGES)

    async def _follow_store(self) -> None:
        failures = 0
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            due, self._due = self._due, {}
            refreshes, self._refreshes = self._refreshes, []
            try:
                await self._read(due)
            except Exception as error:  # noqa: BLE001 - this broker must follow the store again
                self._due = {**due, **self._due}
                self._refreshes = refreshes + self._refreshes
                if self._store.state is SessionState.CONNECTED:
                    bug = None if isinstance(error, _EXPECTED) else error
                    _log.warning("image not updated, retrying: error=%s", error, exc_info=bug)
                    failures += 1
                    await asyncio.sleep(backoff(_RETRY_S_MIN, _RETRY_S_MAX, failures))
                    self._wakeup.set()
                continue
            failures = 0
            for refresh in refreshes:
                if not refresh.done():
                    refresh.set_result(None)

    async def _read(self, due: dict[str, None]) -> None:
        if _EVERYTHING in due:
            await self._register_and_read()
            return
        if _BROKERS in due:
            await self._live_image.read_brokers(self._brokers_changed)
            if not self._is_registered():
                await self._register_and_read()
                return
        if _CONTROLLER in due:
            await self._read_controller()
        if _CHANGES in due:
            await self._read_changes()

    def _is_registered(self) -> bool:
        info = self._live_image.image.brokers.get(self._node_id)
        return info is not None and info.epoch == self.broker_epoch

    async def _register_and_read(self) -> None:
        """Register if the registration is lost, and read the state again."""
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
            self._read_later(_BROKERS)
        await self._read_controller(reads_all=True)

    def _registration_document(self, history: layout.DirectoryHistory) -> bytes:
        return layout.encode_broker(
            *self._address,
            self._proof.kept_epoch,
            history,
            is_restarted=self.last_epoch == -1,
        )

    async def _read_controller(self, *, reads_all: bool = False) -> None:
        dead, self._dead_controller = self._dead_controller, None
        await self._store.exists(layout.CONTROLLER, self._controller_changed)
        if self._must_resign:
            await self._step_down()
        election = await store_elections.elect(
            self._store,
            self._node_id,
            dead,
            former_sessions=self._former_sessions,
            is_candidate=self._pause is None,
        )
        if election.fence is None:
            self._role.drop()
            if reads_all:
                await self._load()
        elif not self._role.is_held_under(election.fence):
            self._role.drop()
            changes = await self._load()
            self._role.take(election.fence, election.controller_epoch, changes)
        elif reads_all:
            await self._load()
        is_new = election != self.election
        self.election = election
        if election.fence is not None and (is_new or reads_all):
            self._elected(is_new)
        if is_new:
            self._live_image.set_controller(election.controller_id)

    async def _step_down(self) -> None:
        self._must_resign = False
        if not self._role.is_controller:
            return
        await self._delete_controller_node()
        self._role.drop()
        loop = asyncio.get_running_loop()
        self._pause = loop.call_later(_PAUSE_S, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self._read_later(_CONTROLLER)

    async def _load(self) -> layout.ChangeLog:
        changes = await store_reader.read_changes(self._store, self._change_list_changed)
        await self._live_image.read_broker_configs()
        await self._live_image.read_group_configs()
        await self._read_users()
        await self._read_acls()
        await self._live_image.read_tokens()
        await self._live_image.read_quotas()
        await gather_bounded(self._read_topic, await self._live_image.names())
        self._changes_seen = changes.last
        return changes

    async def _read_changes(self) -> None:
        changes = await store_reader.read_changes(self._store, self._change_list_changed)
        if not self._role.is_controller:
            rows = changes.since(self._changes_seen)
            if rows is None:
                await self._load()
                return
            await self._read_rows(rows)
        self._changes_seen = changes.last

    async def _read_rows(self, rows: Iterable[layout.ChangeRow]) -> None:
        wanted = dict.fromkeys(rows)
        whole = [row.name for row in wanted if row.kind in ("topic", "config")]
        if any(row.kind == "broker" for row in wanted):
            await self._live_image.read_broker_configs()
        if any(row.kind == "group" for row in wanted):
            await self._live_image.read_group_configs()
        users = [row.name for row in wanted if row.kind == "user"]
        if users:
            await self._read_users(users)
        acls = [int(row.name, 16) for row in wanted if row.kind == "acl"]
        if acls:
            await self._read_acls(acls)
        tokens = [row.name for row in wanted if row.kind == "token"]
        if tokens:
            await self._live_image.read_tokens(tokens)
        quotas = [layout.entity_of_path(row.name) for row in wanted if row.kind == "quota"]
        if quotas:
            await self._live_image.read_quotas(quotas)
        await gather_bounded(self._read_topic, dict.fromkeys(whole))
        states: dict[str, list[int]] = {}
        for row in wanted:
            if row.kind == "states" and row.name not in whole:
                states.setdefault(row.name, []).append(row.first)
        await gather_bounded(self._read_states, states.items())

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

    async def _read_states(self, of_topic: tuple[str, list[int]]) -> None:
        name, firsts = of_topic
        async with self._locks.hold(collision_key(name)):
            for first in firsts:
                await self._live_image.read_states(name, first)
