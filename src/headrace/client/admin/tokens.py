"""Operations that create, list, renew and expire delegation tokens. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.client.core.errors import request_failed
from headrace.client.core.operation import ANY, CONTROLLER, Ask, Operation, Session, retrying
from headrace.client.core.values import TokenInfo
from headrace.model.errors import ErrorCode
from headrace.wire.apis import (
    CREATE_DELEGATION_TOKEN,
    DESCRIBE_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
)

_USER = "User"
_SENTENCES = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "Delegation tokens are disabled. Set "
    "delegation.token.secret.key on all brokers.",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "The delegation token does not exist.",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "Only the owner and the renewers of a delegation "
    "token can renew or expire it.",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "Delegation tokens require a login as a user, "
    "with SASL or with a certificate, and not with a token.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Tokens for another user require CreateTokens "
    "on that user.",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "The delegation token has expired.",
}


def create_token(
    session: Session, owner: str | None, renewers: Sequence[str], max_lifetime_ms: int
) -> Operation[TokenInfo]:
    """After a lost connection it can create a second token, which expires unused."""
    reply = yield from _asked(
        session,
        CREATE_DELEGATION_TOKEN,
        {
            "owner_principal_type": _USER if owner else None,
            "owner_principal_name": owner,
            "renewers": [{"principal_type": _USER, "principal_name": each} for each in renewers],
            "max_lifetime_ms": max_lifetime_ms,
        },
        "creating a token",
    )
    return TokenInfo(
        reply["token_id"],
        reply["principal_name"],
        reply.get("token_requester_principal_name") or reply["principal_name"],
        tuple(renewers),
        reply["issue_timestamp_ms"],
        reply["expiry_timestamp_ms"],
        reply["max_timestamp_ms"],
        reply["hmac"],
    )


def list_tokens(session: Session, owner: str | None) -> Operation[list[TokenInfo]]:
    owners = None if owner is None else [{"principal_type": _USER, "principal_name": owner}]
    reply = yield from _asked(
        session, DESCRIBE_DELEGATION_TOKEN, {"owners": owners}, "listing tokens", ANY
    )
    return [_info(token) for token in reply["tokens"]]


def _info(token: Mapping[str, Any]) -> TokenInfo:
    return TokenInfo(
        token["token_id"],
        token["principal_name"],
        token.get("token_requester_principal_name") or token["principal_name"],
        tuple(each["principal_name"] for each in token["renewers"]),
        token["issue_timestamp"],
        token["expiry_timestamp"],
        token["max_timestamp"],
        token["hmac"],
    )


def renew_token(session: Session, hmac: bytes, period_ms: int) -> Operation[int]:
    fields = {"hmac": hmac, "renew_period_ms": period_ms}
    reply = yield from _asked(session, RENEW_DELEGATION_TOKEN, fields, "renewing a token")
    return int(reply["expiry_timestamp_ms"])


def expire_token(session: Session, hmac: bytes, period_ms: int) -> Operation[int]:
    fields = {"hmac": hmac, "expiry_time_period_ms": period_ms}
    reply = yield from _asked(session, EXPIRE_DELEGATION_TOKEN, fields, "expiring a token")
    return int(reply["expiry_timestamp_ms"])


def _asked(
    session: Session, api_key: int, fields: dict[str, Any], what: str, target: Any = CONTROLLER
) -> Operation[Any]:
    def attempt() -> Operation[Any]:
        reply = yield Ask(target, api_key, fields)
        code = reply["error_code"]
        if code:
            sentence = _SENTENCES.get(ErrorCode(code)) if code in set(ErrorCode) else None
            raise request_failed(code, sentence)
        return reply

    return (yield from retrying(session, what, attempt))
