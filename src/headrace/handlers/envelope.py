"""Envelope, version 0: process a request that a broker forwards to the controller. Brokers only.

- The request contains the frame of the client's request, and the response that of its response.
- Accepts the CONTROLLER_APIS of wire/apis.py only (INVALID_REQUEST).
- The request is authorized with the client's principal and address, which the Envelope contains.
- Versions: 0.

Gaps: the principal is text, such as User:ANONYMOUS, not Kafka's DefaultPrincipalData.
"""

from inspect import isawaitable

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.dispatch import handle_frame
from headrace.requests.forwarding import address_text
from headrace.wire.apis import CONTROLLER_APIS
from headrace.wire.codec import MalformedRequest, Message
from headrace.wire.header import read_header


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    try:
        return {"response_data": await _open(broker, context, request)}
    except MalformedRequest as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None


async def _open(broker: BrokerContext, context: RequestContext, request: Message) -> bytes:
    frame = request["request_data"]
    header = read_header(frame)
    if header.api_key not in CONTROLLER_APIS:
        raise ApiError(ErrorCode.INVALID_REQUEST, "This request cannot be forwarded.")
    if not broker.controller.is_controller:
        raise ApiError(ErrorCode.NOT_CONTROLLER)
    client = RequestContext(
        header.api_key,
        header.api_version,
        header.correlation_id,
        header.client_id,
        address_text(request["client_host_address"]),
        context.listener,
        is_forwarded=True,
        principal=_principal(request["request_principal"]),
    )
    response = handle_frame(broker, client, frame, header.body_at)
    return await response if isawaitable(response) else response


def _principal(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        code = ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
        raise ApiError(code, "The principal is not UTF-8.") from None


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code}
