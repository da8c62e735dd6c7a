"""Checks that all requests about delegation tokens share, and their principals.

1. Only a client that has logged in with its own credential can use these requests: neither one
   without a login, nor one that logged in with a token.
2. A token is identified by its HMAC, which only clients that received the token know.
"""

import hmac

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.tokens import Token
from headrace.requests.context import BrokerContext, RequestContext
from headrace.security.tokens import token_hmac
from headrace.wire.apis import (
    CREATE_DELEGATION_TOKEN,
    DESCRIBE_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
)
from headrace.wire.codec import Message

NO_TIME = -1
"""The timestamps in a response with an error."""
TOKEN_APIS = frozenset(
    (
        CREATE_DELEGATION_TOKEN,
        DESCRIBE_DELEGATION_TOKEN,
        EXPIRE_DELEGATION_TOKEN,
        RENEW_DELEGATION_TOKEN,
    )
)


def check_token_request(broker: BrokerContext, context: RequestContext) -> None:
    """Raise ApiError if the client cannot use delegation tokens, or if they are disabled."""
    if not context.is_forwarded and not context.has_own_login:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    secret_of(broker)


def secret_of(broker: BrokerContext) -> str:
    secret = broker.config.get_optional_str("delegation.token.secret.key")
    if secret is None:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return secret


def find_token(broker: BrokerContext, given: bytes) -> Token:
    """The token with this HMAC."""
    secret = secret_of(broker)
    for token in broker.image.tokens.values():
        if hmac.compare_digest(token_hmac(secret, token.token_id), given):
            return token
    raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)


def principal_in(item: Message) -> str:
    """The principal of an item with its type and its name."""
    if item["principal_type"] != "User":
        raise ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    return f"User:{item['principal_name']}"


def fields_of(principal: str, prefix: str = "") -> Message:
    """The two fields of a principal in a response."""
    kind, _, name = principal.partition(":")
    return {f"{prefix}principal_type": kind, f"{prefix}principal_name": name}
