"""SaslAuthenticate, versions 0 to 2: exchange the messages of a SASL mechanism.

- security/sasl_machine.py responds to this request during a login.
- After the login, and on a listener without SASL, the response is ILLEGAL_SASL_STATE.
- With connections.max.reauth.ms, a client logs in again on the same connection (KIP-368).
- Every failed login gets SASL_AUTHENTICATION_FAILED, whatever the reason.
- Requires: nothing.
- Versions: 0 to 2. Since 1, the response has the lifetime of the session; 0 means no limit.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import failure
from headrace.wire.codec import Message


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    raise ApiError(
        ErrorCode.ILLEGAL_SASL_STATE,
        "SaslAuthenticate is not expected: the connection needs no login.",
    )


def error_response(request: Message, error: ApiError) -> Message:
    return failure(error)
