"""The credentials of delegation tokens, with which clients log in.

Only SASL listeners load this module. The derivation of a credential takes milliseconds. It runs on
a thread as soon as the broker knows the token. Otherwise, the first login would hold the loop, and
its time would reveal that the token exists.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping

from headrace.env.clock import Clock
from headrace.model.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from headrace.model.tokens import Token
from headrace.runtime.worker import Worker
from headrace.security.sasl_machine import TokenLogin
from headrace.security.tokens import token_credential

_log = logging.getLogger(__name__)


class TokenLogins:
    def __init__(self, key: str, tokens: Mapping[str, Token], clock: Clock, worker: Worker) -> None:
        """`key` is delegation.token.secret.key; without it, tokens are disabled."""
        self.key = key
        self._tokens = tokens
        self._clock = clock
        self._worker = worker
        self._waiting: deque[str] = deque()
        self._is_deriving = False
        self.derive(tokens)

    def find(self, mechanism: str, token_id: str) -> TokenLogin | None:
        token = self._tokens.get(token_id)
        now_ms = self._clock.wall_ms()
        if token is None or token.is_expired(now_ms):
            return None
        return TokenLogin(
            token_credential(self.key, mechanism, token_id),
            token.owner.partition(":")[2],
            (min(token.expires_ms, token.max_ms) - now_ms) / 1000,
        )

    def derive(self, token_ids: Iterable[str]) -> None:
        """Derive the credentials of new tokens, on the thread."""
        if self.key:
            self._waiting.extend(token_ids)
            self._next()

    def _next(self) -> None:
        # One by one: in between, the thread verifies passwords.
        if self._waiting and not self._is_deriving:
            self._is_deriving = True
            token_id = self._waiting.popleft()
            self._worker.submit(lambda: self._derive(token_id), self._derived)

    def _derive(self, token_id: str) -> None:
        for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512):
            token_credential(self.key, mechanism, token_id)

    def _derived(self, _: object, error: BaseException | None) -> None:
        self._is_deriving = False
        if error is not None:
            _log.error("derivation of a token failed with an internal error", exc_info=error)
        self._next()
