"""Reads delegation tokens from the store. Changes nothing."""

import logging
from collections.abc import Iterable

from headrace.coordination import layout, token_layout
from headrace.coordination.port import NoNode, Store
from headrace.model.tokens import Token
from headrace.runtime.gather_bounded import gather_bounded

_log = logging.getLogger(__name__)


async def read_tokens(
    store: Store, ids: Iterable[str] | None = None
) -> tuple[dict[str, Token | None], dict[str, int]]:
    """Read some tokens, or all of them, and the versions of their nodes.

    The value None means that the token does not exist, or that its node cannot be decoded.
    """
    versions: dict[str, int] = {}

    async def read(token_id: str) -> tuple[str, Token | None]:
        path = token_layout.token_path(token_id)
        try:
            data, stat = await store.get(path)
            token = token_layout.decode_token(path, data)
        except NoNode:
            return token_id, None
        except layout.LayoutError as error:
            _log.error("delegation token ignored: error=%s", error)
            return token_id, None
        versions[path] = stat.version
        return token_id, token

    if ids is None:
        try:
            ids = await store.children(token_layout.TOKENS)
        except NoNode:
            ids = []
    return dict(await gather_bounded(read, dict.fromkeys(ids))), versions
