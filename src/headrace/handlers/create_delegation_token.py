"""CreateDelegationToken, versions 1 to 3: create a token that acts as its owner.

- The owner is the user of the connection, or another user if that is allowed.
- The password of the token is derived from delegation.token.secret.key and is not stored.
- Clients without a login, or with the login of a token, get DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
- Any broker accepts the request and forwards it to the controller.
- Requires: nothing for the client's own user; for another user, CreateTokens on that user.
- Versions: 1 to 3. Since 3, the owner can be another user.

Gaps: a response with an error has no principals; Kafka's can have the principals of the request.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.tokens import Token
from headrace.requests.authorization import is_allowed
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.token_requests import NO_TIME, fields_of, principal_in, secret_of
from headrace.security.authorizer import Operation, Resource, ResourceType
from headrace.security.tokens import token_hmac
from headrace.wire.codec import Message


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    secret = secret_of(broker)
    owner = context.principal
    if request.get("owner_principal_name"):
        owner = principal_in(
            {
                "principal_type": request["owner_principal_type"],
                "principal_name": request["owner_principal_name"],
            }
        )
    renewers = tuple(dict.fromkeys(map(principal_in, request["renewers"])))
    if owner != context.principal and not is_allowed(
        broker, context, Operation.CREATE_TOKENS, Resource(ResourceType.USER, owner)
    ):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    now_ms = broker.clock.wall_ms()
    lifetime_ms = broker.config.get_int("delegation.token.max.lifetime.ms")
    if request["max_lifetime_ms"] > 0:
        lifetime_ms = min(lifetime_ms, request["max_lifetime_ms"])
    expiry_ms = min(lifetime_ms, broker.config.get_int("delegation.token.expiry.time.ms"))
    token = await broker.controller.create_token(
        lambda token_id: Token(
            token_id,
            owner,
            context.principal,
            renewers,
            now_ms,
            now_ms + expiry_ms,
            now_ms + lifetime_ms,
        )
    )
    broker.audit.changed(
        context.principal, context.host, "token created", token=token.token_id, owner=owner
    )
    return {
        **fields_of(token.owner),
        **fields_of(token.requester, "token_requester_"),
        "issue_timestamp_ms": token.issued_ms,
        "expiry_timestamp_ms": token.expires_ms,
        "max_timestamp_ms": token.max_ms,
        "token_id": token.token_id,
        "hmac": token_hmac(secret, token.token_id),
    }


def error_response(request: Message, error: ApiError) -> Message:
    times = ("issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms")
    return {"error_code": error.code, **dict.fromkeys(times, NO_TIME)}
