"""DescribeDelegationToken, versions 1 to 3: list tokens.

- Every broker responds. Expired tokens are omitted.
- Clients without a login, or with the login of a token, get DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
- Requires: nothing for tokens that the user owns or can renew; for other tokens, Describe on the
  token, or DescribeTokens on its owner. Tokens without this permission are omitted.
- Versions: 1 to 3. Since 3, the response contains the user that created a token.
"""

from headrace.model.errors import ApiError
from headrace.model.tokens import Token
from headrace.requests.authorization import is_allowed
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.token_requests import fields_of, principal_in, secret_of
from headrace.security.authorizer import Operation, Resource, ResourceType
from headrace.security.tokens import token_hmac
from headrace.wire.codec import Message


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    secret = secret_of(broker)
    owners = request["owners"]
    wanted = None if owners is None else set(map(principal_in, owners))
    now_ms = broker.clock.wall_ms()
    tokens = [
        {
            **fields_of(token.owner),
            **fields_of(token.requester, "token_requester_"),
            "issue_timestamp": token.issued_ms,
            "expiry_timestamp": token.expires_ms,
            "max_timestamp": token.max_ms,
            "token_id": token.token_id,
            "hmac": token_hmac(secret, token.token_id),
            "renewers": [fields_of(renewer) for renewer in token.renewers],
        }
        for token in broker.image.tokens.values()
        if (wanted is None or token.owner in wanted)
        and not token.is_expired(now_ms)
        and _can_see(broker, context, token)
    ]
    return {"tokens": tokens}


def _can_see(broker: BrokerContext, context: RequestContext, token: Token) -> bool:
    if token.is_managed_by(context.principal):
        return True
    by_id = Resource(ResourceType.DELEGATION_TOKEN, token.token_id)
    by_owner = Resource(ResourceType.USER, token.owner)
    return is_allowed(broker, context, Operation.DESCRIBE, by_id) or is_allowed(
        broker, context, Operation.DESCRIBE_TOKENS, by_owner
    )


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code, "tokens": []}
