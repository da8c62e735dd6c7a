"""Writes changes of delegation tokens, on the controller.

1. Changes of one token are made one at a time.
2. After a write with an unknown outcome, the token is read again (B5).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from uuid import UUID

from headrace.cluster.keyed_locks import KeyedLocks
from headrace.cluster.live_image import LiveImage
from headrace.controller.fenced_writer import FencedWriter
from headrace.coordination.layout import ChangeRow
from headrace.coordination.port import Store, StoreUnavailable
from headrace.coordination.token_layout import encode_token, token_path
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.ids import id_text
from headrace.model.tokens import Token

TOKENS_MAX = 10_000
_ATTEMPTS_MAX = 10
_log = logging.getLogger(__name__)

TokenEdit = Callable[[Token], Token | None]
"""The token after a change; None deletes it. Raises ApiError."""


class TokenAdmin:
    def __init__(
        self,
        store: Store,
        live_image: LiveImage,
        writer: FencedWriter,
        locks: KeyedLocks,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._entropy = entropy
        self._store = store
        self._live_image = live_image
        self._writer = writer
        self._locks = locks
        self._removal: asyncio.Future[None] | None = None

    async def create(self, make: Callable[[str], Token]) -> Token:
        """Create a token; `make` gets its id, which is random."""
        if len(self._live_image.image.tokens) >= TOKENS_MAX:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{TOKENS_MAX} delegation tokens already exist, the maximum. Expire others first.",
            )
        token = make(id_text(UUID(bytes=self._entropy(16))))
        await self._change(token.token_id, lambda _: token)
        return token

    async def alter(self, token_id: str, edit: TokenEdit) -> Token | None:
        """Change a token, or delete it if `edit` returns None. Raises ApiError if it is unknown."""

        def edited(token: Token | None) -> Token | None:
            if token is None:
                raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
            return edit(token)

        return await self._change(token_id, edited)

    def remove_expired(self, now_ms: int) -> None:
        """Start to delete the tokens that have expired."""
        expired = [
            each for each in self._live_image.image.tokens.values() if each.is_expired(now_ms)
        ]
        if expired and (self._removal is None or self._removal.done()):
            self._removal = asyncio.ensure_future(self._remove(expired, now_ms))

    async def _remove(self, expired: Sequence[Token], now_ms: int) -> None:
        def kept(token: Token | None) -> Token | None:
            return None if token is None or token.is_expired(now_ms) else token

        try:
            for token in expired:
                await self._change(token.token_id, kept)
        except ApiError as error:
            _log.warning("expired delegation tokens not deleted, retrying later: error=%s", error)
            return
        _log.info("expired delegation tokens deleted: tokens=%d", len(expired))

    async def _change(
        self, token_id: str, edit: Callable[[Token | None], Token | None]
    ) -> Token | None:
        path = token_path(token_id)
        is_repeated, wanted = False, None
        async with self._locks.hold(path):
            for _ in range(_ATTEMPTS_MAX):
                known = self._live_image.image.tokens.get(token_id)
                if is_repeated and wanted == known:
                    return known  # An earlier attempt, with an unknown outcome, had succeeded.
                wanted = edit(known)
                if wanted == known:
                    return known
                op = (
                    self._writer.delete(path)
                    if wanted is None
                    else self._writer.put(path, encode_token(wanted))
                )
                if await self._writer.commit([op], [ChangeRow("token", token_id)]):
                    self._live_image.set_tokens({token_id: wanted})
                    return wanted
                is_repeated = True
                await self._read_again(token_id)
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def _read_again(self, token_id: str) -> None:
        try:
            await self._store.sync()
            await self._live_image.read_tokens([token_id])
        except StoreUnavailable:
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                "The connection to the store was lost before it responded.",
            ) from None
