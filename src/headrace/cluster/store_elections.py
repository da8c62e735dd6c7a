"""Creates the base nodes of the store, registers brokers, and elects the controller.

Keeps no state. Each of the three steps can be repeated after an unknown outcome.

1. An existing registration of this broker id is removed only if a former session of this process
   created it, or if its process is dead: its port refuses two connection attempts. Otherwise, this
   broker waits until it expires (B9).
2. Becoming the controller and raising the controller epoch is one `multi` (B8).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from headrace.coordination import layout
from headrace.coordination.layout import DirectoryHistory
from headrace.coordination.port import (
    ConnectionLost,
    Create,
    Delete,
    MultiFailed,
    NoNode,
    Op,
    Set,
    Stat,
    Store,
    StoreUnavailable,
    UnknownOutcome,
    Watch,
    WatchEvent,
)
from headrace.model.cluster import BrokerInfo
from headrace.model.errors import ApiError, ErrorCode

_ATTEMPTS_MAX = 20
_CHECK_INTERVAL_S = 1.0
"""How often a broker that waits for another session checks that the store responds."""
_SLOW_RESPONSE_S = 0.5
"""A store that takes longer for a response is slow, unless the broker waited longer anyway."""
_log = logging.getLogger(__name__)


LooksDead = Callable[[BrokerInfo], Awaitable[bool]]
"""Returns whether the process of a registered broker is dead: see Peers.looks_dead."""


class DirectoryProof(NamedTuple):
    """The registrations whose data the data directory of a broker still has."""

    directory_id: str = ""
    kept_epoch: int = -1
    """The broker epoch of which the directory still has all data; -1 without a proof."""
    last_epoch: int = -1
    """The last broker epoch that wrote to the directory; -1 if unknown."""


class Election(NamedTuple):
    controller_id: int
    controller_epoch: int
    fence: int | None
    """The version of /controller_epoch that every write of this controller checks.

    None if another broker is the controller.
    """


async def prepare(store: Store, cluster_id: str) -> None:
    """Create the base nodes, the cluster id and the counters that do not exist yet."""
    wanted = [
        *(Create(path) for path in layout.BASE_NODES),
        Create(layout.CLUSTER_ID, layout.encode_cluster_id(cluster_id)),
        Create(layout.CONTROLLER_EPOCH, layout.encode_controller_epoch(0)),
        Create(layout.PRODUCER_IDS, layout.encode_producer_ids(0)),
        Create(layout.CHANGES, layout.encode_changes(layout.ChangeLog(0, ()))),
    ]
    for _ in range(_ATTEMPTS_MAX):
        missing = [op for op in wanted if await store.exists(op.path) is None]
        if not missing:
            return
        try:
            await store.multi(missing)
        except (MultiFailed, UnknownOutcome):
            # Another broker created some of these nodes, or the outcome is unknown: check again.
            await store.sync()
    raise StoreUnavailable("the first nodes of the cluster were not created in the store")


async def register(
    store: Store,
    node_id: int,
    document_of: Callable[[DirectoryHistory], bytes],
    proof: DirectoryProof,
    former_sessions: list[int],
    wait_s: float,
    looks_dead: LooksDead,
) -> Stat:
    """Register this broker, and return the stat of its node. Its `czxid` is the broker epoch.

    `document_of` encodes the content of the node. If another session has registered this broker id,
    and its process is dead, the session is added to `former_sessions`. If it is alive, this call
    waits up to `wait_s` until the session expires.
    """
    path = layout.broker_path(node_id)
    attempts = 0
    while attempts < _ATTEMPTS_MAX:
        # Read this node first: if another process then registers this id, the `multi` below fails.
        incarnation, history = await _next_incarnation(store, node_id, proof)
        deleted = asyncio.Event()
        stat = await store.exists(path, _watch_that_sets(deleted))
        if stat is not None and stat.ephemeral_owner == store.session_id:
            return stat
        ops: list[Op] = [Create(path, document_of(history), ephemeral=True), incarnation]
        if stat is not None and stat.ephemeral_owner in former_sessions:
            ops.insert(0, Delete(path, stat.version))
        elif stat is not None:
            if await _is_process_dead(store, node_id, stat.czxid, looks_dead):
                former_sessions.append(stat.ephemeral_owner)
            else:
                await _wait_until_deleted(store, deleted, node_id, stat.ephemeral_owner, wait_s)
            continue
        attempts += 1
        if history.lost_until > proof.last_epoch:
            _log.warning(
                "data directory is older than the last registration, or is another one: "
                "broker=%d directory_id=%s epoch=%d last_epoch=%d",
                node_id,
                proof.directory_id,
                proof.last_epoch,
                history.lost_until,
            )
        try:
            await store.multi(ops)
        except (MultiFailed, UnknownOutcome):
            await store.sync()
    raise StoreUnavailable(f"broker {node_id} was not registered")


def _watch_that_sets(event: asyncio.Event) -> Watch:
    def watch(_: WatchEvent) -> None:
        event.set()

    return watch


async def _next_incarnation(
    store: Store, node_id: int, proof: DirectoryProof
) -> tuple[Op, DirectoryHistory]:
    """An operation that writes the broker's incarnation node, and the history in it."""
    path = layout.incarnation_path(node_id)
    try:
        data, stat = await store.get(path)
    except NoNode:
        history = DirectoryHistory(proof.directory_id)
        return Create(path, layout.encode_incarnation(history)), history
    former = layout.decode_incarnation(node_id, data)
    last_epoch = stat.mzxid
    history = former._replace(
        directory_id=proof.directory_id or former.directory_id,
        kept_since=_kept_since(former, last_epoch, proof.kept_epoch),
    )
    is_known = former.directory_id and proof.directory_id
    if is_known and (former.directory_id, last_epoch) != (proof.directory_id, proof.last_epoch):
        history = history._replace(lost_until=last_epoch)
    return Set(path, layout.encode_incarnation(history), stat.version), history


def _kept_since(former: DirectoryHistory, last_epoch: int, kept_epoch: int) -> int:
    """The first broker epoch since which the broker has lost nothing; -1 if unproven."""
    if kept_epoch == last_epoch and former.kept_since >= 0:
        return former.kept_since
    return kept_epoch


async def _is_process_dead(store: Store, node_id: int, epoch: int, looks_dead: LooksDead) -> bool:
    try:
        data, stat = await store.get(layout.broker_path(node_id))
    except NoNode:
        return False
    if stat.czxid != epoch:
        return False
    try:
        former = layout.decode_broker(node_id, data, epoch)
    except layout.LayoutError:
        return False
    return await looks_dead(former)


async def _wait_until_deleted(
    store: Store, deleted: asyncio.Event, node_id: int, session: int, wait_s: float
) -> None:
    """Wait until the other session's registration is deleted; raise ApiError after `wait_s`.

    If the store is slow or unreachable, sessions last longer, and a watch can be lost. This call
    then returns early. The caller reads the registration again, and waits again.
    """
    _log.info(
        "broker id is registered by another session, waiting until it expires: "
        "broker=%d session=%x wait_s=%.1f",
        node_id,
        session,
        wait_s,
    )
    left_s = wait_s
    while left_s > 0:
        step_s = min(left_s, _CHECK_INTERVAL_S)
        try:
            await asyncio.wait_for(deleted.wait(), step_s)
            return
        except TimeoutError:
            left_s -= step_s
        if not await _is_responsive(store, step_s):
            _log.warning("store is slow, waiting longer for the other session: broker=%d", node_id)
            return
    raise ApiError(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        f"A broker with id {node_id} is already registered. Stop it, or set another node.id.",
    )


async def _is_responsive(store: Store, waited_s: float) -> bool:
    """Whether the store responds in time, and without a lost connection.

    Waits until the store is connected again.
    """
    loop = asyncio.get_running_loop()
    start, is_connected = loop.time(), True
    while True:
        try:
            await store.sync()
        except ConnectionLost:
            is_connected = False
            await asyncio.sleep(waited_s)
        else:
            return is_connected and loop.time() - start <= max(waited_s, _SLOW_RESPONSE_S)


async def elect(
    store: Store,
    node_id: int,
    dead: Election | None = None,
    *,
    former_sessions: Collection[int] = (),
    is_candidate: bool = True,
) -> Election:
    """Return the controller. If none exists and this broker `is_candidate`, it becomes it.

    The process of the controller `dead`, and the processes of `former_sessions`, are dead. A
    candidate deletes their /controller node, but never the node of a later controller.
    """
    for _ in range(_ATTEMPTS_MAX):
        # Read the epoch before the controller. In the other order, it could be the epoch of a later
        # controller.
        epoch_data, epoch_stat = await store.get(layout.CONTROLLER_EPOCH)
        epoch = layout.decode_controller_epoch(epoch_data)
        try:
            data, stat = await store.get(layout.CONTROLLER)
        except NoNode:
            if not is_candidate:
                return Election(-1, epoch, None)
            election = await _become_controller(store, node_id, epoch + 1, epoch_stat.version, [])
        else:
            controller_id = layout.decode_controller(data)
            is_own = stat.ephemeral_owner == store.session_id
            is_dead = dead is not None and (controller_id, epoch) == dead[:2]
            is_dead = is_dead or stat.ephemeral_owner in former_sessions
            if is_own or not is_dead or not is_candidate:
                return Election(controller_id, epoch, epoch_stat.version if is_own else None)
            removal = [Delete(layout.CONTROLLER)]
            election = await _become_controller(
                store, node_id, epoch + 1, epoch_stat.version, removal
            )
        if election is not None:
            return election
    raise StoreUnavailable("no controller was elected")


async def _become_controller(
    store: Store, node_id: int, epoch: int, version: int, removal: list[Delete]
) -> Election | None:
    """The election of this broker; None if another broker was first, or the outcome is unknown."""
    ops: list[Op] = [
        *removal,
        Create(layout.CONTROLLER, layout.encode_controller(node_id), ephemeral=True),
        Set(layout.CONTROLLER_EPOCH, layout.encode_controller_epoch(epoch), version),
    ]
    try:
        results = await store.multi(ops)
    except (MultiFailed, UnknownOutcome):
        await store.sync()
        return None
    epoch_stat = results[-1]
    assert epoch_stat is not None
    return Election(node_id, epoch, epoch_stat.version)
