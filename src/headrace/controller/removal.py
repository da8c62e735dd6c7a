"""Removes the registration of a dead broker, in the request that elects new leaders.

Owns the check that it is still that incarnation (B9): a broker that registered again meanwhile is
left alone, whatever its former life was taken for.
"""

import logging
from collections.abc import Sequence

from headrace.cluster.failure_detection.liveness_machine import Liveness
from headrace.controller.failover import Failover
from headrace.coordination import layout
from headrace.coordination.port import Check, Delete, NoNode, Op, Store, StoreUnavailable
from headrace.model.cluster import BrokerInfo
from headrace.model.errors import ApiError

_ATTEMPTS_MAX = 5
_log = logging.getLogger(__name__)


async def remove(store: Store, liveness: Liveness, failover: Failover, info: BrokerInfo) -> None:
    """Put a broker out whose process is gone, and elect others in its place."""
    _log.warning("broker is dead, its port refuses connections: broker=%d", info.node_id)
    liveness.put_out(info.node_id, info.epoch)
    try:
        for _ in range(_ATTEMPTS_MAX):
            ops = await _removal(store, info)
            if not ops:
                return
            await failover.settle(_Once(ops))
    except (ApiError, StoreUnavailable) as error:
        # Its session ends all the same, and the elections are tried again.
        _log.warning("registration not removed: broker=%d error=%s", info.node_id, error)
    finally:
        failover.run_soon()


async def _removal(store: Store, info: BrokerInfo) -> list[Op]:
    """What removes this incarnation and no later one; nothing if it is gone."""
    incarnation = layout.incarnation_path(info.node_id)
    # In this order: who registers after the first read fails the check.
    stat = await store.exists(incarnation)
    try:
        _, registration = await store.get(layout.broker_path(info.node_id))
    except NoNode:
        return []
    if stat is None or registration.czxid != info.epoch:
        return []
    return [Check(incarnation, stat.version), Delete(layout.broker_path(info.node_id))]


class _Once:
    """Operations for the first attempt; the elections are tried again without them."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops

    def __call__(self) -> Sequence[Op]:
        ops, self._ops = self._ops, ()
        return ops
