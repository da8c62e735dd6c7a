"""Operations that create, list, renew and expire delegation tokens. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.client.core.errors import request_failed
from headrace.client.core.operation import (
    ANY,
    CONTROLLER,
    Operation,
    OperationEngine,
    Send,
    retrying,
)
from headrace.client.core.values import TokenInfo
from headrace.model.errors import ErrorCode
from headrace.wire.apis import (
    CREATE_DELEGATION_TOKEN,
    DESCRIBE_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
)

_USER = "User"
_MESSAGES = {
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
    engine: OperationEngine, owner: str | None, renewers: Sequence[str], max_lifetime_ms: int
) -> Operation[TokenInfo]:
    """Create a token. A retry after a lost connection can create a second one, which expires."""
    response = yield from _send(
        engine,
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
        response["token_id"],
        response["principal_name"],
        response.get("token_requester_principal_name") or response["principal_name"],
        tuple(renewers),
        response["issue_timestamp_ms"],
        response["expiry_timestamp_ms"],
        response["max_timestamp_ms"],
        response["hmac"],
    )


def list_tokens(engine: OperationEngine, owner: str | None) -> Operation[list[TokenInfo]]:
    owners = None if owner is None else [{"principal_type": _USER, "principal_name": owner}]
    response = yield from _send(
        engine, DESCRIBE_DELEGATION_TOKEN, {"owners": owners}, "listing tokens", ANY
    )
    return [_info(token) for token in response["tokens"]]


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


def renew_token(engine: OperationEngine, hmac: bytes, period_ms: int) -> Operation[int]:
    fields = {"hmac": hmac, "renew_period_ms": period_ms}
    response = yield from _send(engine, RENEW_DELEGATION_TOKEN, fields, "renewing a token")
    return int(response["expiry_timestamp_ms"])


def expire_token(engine: OperationEngine, hmac: bytes, period_ms: int) -> Operation[int]:
    fields = {"hmac": hmac, "expiry_time_period_ms": period_ms}
    response = yield from _send(engine, EXPIRE_DELEGATION_TOKEN, fields, "expiring a token")
    return int(response["expiry_timestamp_ms"])


def _send(
    engine: OperationEngine,
    api_key: int,
    fields: dict[str, Any],
    what: str,
    target: Any = CONTROLLER,
) -> Operation[Any]:
    def attempt() -> Operation[Any]:
        response = yield Send(target, api_key, fields)
        code = response["error_code"]
        if code:
            message = _MESSAGES.get(ErrorCode(code)) if code in set(ErrorCode) else None
            raise request_failed(code, message)
        return response

    return (yield from retrying(engine, what, attempt))
