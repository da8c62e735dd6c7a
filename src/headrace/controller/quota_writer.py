"""Writes changes of quotas, on the controller. cluster/quota_reader.py describes their nodes.

1. The parent nodes of a quota are created with it, and deleted with the last quota below them.
2. After a write with an unknown outcome, the entity is read again (B5).
"""

from collections.abc import Callable, Mapping

from headrace.cluster.keyed_locks import KeyedLocks
from headrace.cluster.live_image import LiveImage
from headrace.cluster.quota_reader import has_client_quotas, is_client_of_user, is_named_user
from headrace.controller.fenced_writer import FencedWriter
from headrace.coordination import layout
from headrace.coordination.layout import ChangeRow
from headrace.coordination.port import Create, Op, Store, StoreUnavailable
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.quotas import KINDS, USER, Entity, limits_to_text, user_entity

ENTITIES_MAX = 20_000
_ATTEMPTS_MAX = 10

Edit = Callable[[Mapping[str, float]], Mapping[str, float]]
"""Returns the new limits of an entity for its present limits. Can be called several times."""


class QuotaWriter:
    def __init__(
        self, store: Store, live_image: LiveImage, writer: FencedWriter, locks: KeyedLocks
    ) -> None:
        self._store = store
        self._live_image = live_image
        self._image = live_image.image
        self._writer = writer
        self._locks = locks

    async def alter(self, entity: Entity, edit: Edit, validate_only: bool) -> None:
        names = dict(entity)
        owner = user_entity(names[USER]) if USER in names else entity
        async with self._locks.hold(layout.quota_path(owner)):
            for _ in range(_ATTEMPTS_MAX):
                known = self._image.quotas.get(entity, {})
                limits = edit(known)
                if validate_only or limits == known:
                    return
                if not known and len(self._image.quotas) >= ENTITIES_MAX:
                    raise ApiError(
                        ErrorCode.INVALID_REQUEST,
                        f"{ENTITIES_MAX} entities already have quotas, the maximum. Delete other "
                        "quotas first.",
                    )
                if await self._try(entity, limits):
                    return
                await self._read_again(entity)
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def _try(self, entity: Entity, limits: Mapping[str, float]) -> bool:
        """Write once. Returns False if a node had changed, or the outcome is unknown."""
        names = dict(entity)
        if is_named_user(entity):
            user = names[USER] or ""
            config = self._with_limits(user, limits)
            ops = [self._user_operation(user, config)]
            if not await self._commit(ops, ChangeRow("user", user)):
                return False
            self._live_image.set_user(user, config)
            return True
        path = layout.quota_path(entity)
        if is_client_of_user(entity):
            ops = self._client_operations(names[USER], entity, limits_to_text(limits))
        elif USER in names:
            ops = [self._user_operation(None, limits_to_text(limits))]
        else:
            ops = [self._operation(path, limits_to_text(limits))]
        if not await self._commit(ops, ChangeRow("quota", path)):
            return False
        self._live_image.set_quotas({entity: limits})
        return True

    def _with_limits(self, user: str, limits: Mapping[str, float]) -> dict[str, str]:
        """The stored settings of a user, with these limits instead of its present ones."""
        known = self._image.users.get(user, {})
        others = {name: value for name, value in known.items() if name not in KINDS}
        return others | limits_to_text(limits)

    def _operation(self, path: str, config: Mapping[str, str]) -> Op:
        if config:
            return self._writer.put(path, layout.encode_config(config))
        return self._writer.delete(path)

    def _user_operation(self, user: str | None, config: Mapping[str, str]) -> Op:
        """Set or delete the node of a user. An empty node that has children is not deleted."""
        path = layout.quota_path(user_entity(user))
        if config or has_client_quotas(self._image, user):
            return self._writer.put(path, layout.encode_config(config))
        return self._writer.delete(path)

    def _client_operations(
        self, user: str | None, entity: Entity, config: Mapping[str, str]
    ) -> list[Op]:
        user_path, parent = layout.quota_path(user_entity(user)), layout.user_clients_path(user)
        ops = [self._operation(layout.quota_path(entity), config)]
        if config:
            for path, data in ((parent, b""), (user_path, layout.encode_config({}))):
                if not self._writer.knows(path):
                    ops.insert(0, Create(path, data))
        elif not has_client_quotas(self._image, user, except_for=entity):
            ops.append(self._writer.delete(parent))
            if not self._config_of(user):
                ops.append(self._writer.delete(user_path))
        return ops

    def _config_of(self, user: str | None) -> Mapping[str, object]:
        if user is None:
            return self._image.quotas.get(user_entity(None), {})
        return self._image.users.get(user, {})

    async def _commit(self, ops: list[Op], row: ChangeRow) -> bool:
        return await self._writer.commit(ops, [row], ErrorCode.INVALID_REQUEST)

    async def _read_again(self, entity: Entity) -> None:
        user = dict(entity).get(USER)
        try:
            await self._store.sync()
            if user is not None:
                await self._live_image.read_users([user])
            if not is_named_user(entity):
                await self._live_image.read_quotas([entity, user_entity(None)])
        except StoreUnavailable:
            # Still unknown. After a reconnect, everything is read again.
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                "The connection to the store was lost before it responded.",
            ) from None
