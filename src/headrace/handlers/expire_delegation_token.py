"""ExpireDelegationToken, versions 1 and 2: set the expiry of a token, or delete it now.

- A negative period deletes the token. All brokers close the connections that logged in with it.
- Clients without a login, or with the login of a token, get DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
- Any broker accepts the request and forwards it to the controller.
- Requires: nothing. The user must be the owner or a renewer.
- Versions: 1 and 2.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.tokens import Token
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.token_requests import NO_TIME, find_token
from headrace.wire.codec import Message


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    now_ms = broker.clock.wall_ms()
    period_ms = request["expiry_time_period_ms"]

    def expired(token: Token) -> Token | None:
        if not token.is_managed_by(context.principal):
            raise ApiError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        if period_ms < 0:
            return None
        if token.is_expired(now_ms):
            raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        return token._replace(expires_ms=min(token.max_ms, now_ms + period_ms))

    token_id = find_token(broker, request["hmac"]).token_id
    token = await broker.controller.alter_token(token_id, expired)
    broker.audit.changed(context.principal, context.host, "token expired", token=token_id)
    return {"expiry_timestamp_ms": now_ms if token is None else token.expires_ms}


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code, "expiry_timestamp_ms": NO_TIME}
