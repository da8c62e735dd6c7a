"""SaslHandshake, versions 0 and 1: select the SASL mechanism of a login.

- security/sasl_machine.py responds to this request during the login.
- After the login, and on a listener without SASL, the response is ILLEGAL_SASL_STATE.
- With connections.max.reauth.ms, a client logs in again on the same connection (KIP-368), with the
  same mechanism and user, and at most once per second.
- A mechanism that the listener does not enable gets UNSUPPORTED_SASL_MECHANISM.
- Requires: nothing.
- Versions: 0 and 1. After 0, the client sends tokens without a header; since 1, SaslAuthenticate.

Gaps: GSSAPI is not supported.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.wire.codec import Message


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    raise ApiError(ErrorCode.ILLEGAL_SASL_STATE)


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code, "mechanisms": []}
