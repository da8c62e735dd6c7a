"""From a frame to the bytes of its answer, for every API but Produce, Fetch and OffsetCommit.

A handler is the module named as its API. `handle(broker, context, request)` gives the reply or an
awaitable of it; `refuse(request, error)` gives the reply that says the same error in every slot.
Both work on plain dicts (wire/codec.py). Modules are imported when they are first asked.

I1  a frame that breaks the protocol raises MalformedRequest, and its connection is closed
I2  an ApiError that concerns one item is answered in that item's slot, by the handler; one that
    concerns the whole request reaches here and is answered with `refuse`
I3  anything else is a bug of ours: one log line with its traceback, and UNKNOWN_SERVER_ERROR
"""

import logging
from collections.abc import Awaitable, Callable
from functools import cache, partial
from importlib import import_module
from typing import Any, Protocol, cast

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.forwarding import FORWARDED, Carry, administer
from headrace.requests.group_requests import until_settled
from headrace.requests.replies import now_or_later
from headrace.wire.api_versions import answer_api_versions
from headrace.wire.apis import API_VERSIONS, APIS
from headrace.wire.codec import MalformedRequest, Message, decode_request, encode_response

_log = logging.getLogger(__name__)


class Handler(Protocol):
    """What a module in this package offers."""

    handle: Callable[[BrokerContext, RequestContext, Message], Message | Awaitable[Message]]
    refuse: Callable[[Message, ApiError], Message]


def handle_frame(
    broker: BrokerContext, context: RequestContext, frame: bytes, body_at: int
) -> bytes | Awaitable[bytes]:
    """The whole response without its length: at once, or later."""
    version = context.api_version
    if context.api_key == API_VERSIONS:
        return answer_api_versions(version, context.correlation_id, frame, body_at)
    if APIS[context.api_key].is_internal and not context.is_internal:
        name = APIS[context.api_key].name
        raise MalformedRequest(f"{name} is accepted only on the inter-broker listener")
    request = decode_request(context.api_key, version, frame, body_at)
    handler = _handler(context.api_key)
    carry = partial(handler.handle, broker, context, request)
    if context.api_key in FORWARDED:
        return _administer(broker, handler, context, frame, request, cast(Carry, carry))
    try:
        settling = until_settled(broker, context, request)
        reply = carry() if settling is None else _after(settling, carry)
    except Exception as error:  # noqa: BLE001 (it is answered, and logged if it is a bug)
        reply = handler.refuse(request, _as_api_error(context, error))
    if isinstance(reply, dict):
        return _encode(context, reply)
    return _finish(handler, context, request, reply)


async def _after(
    wait: Awaitable[None], carry: Callable[[], Message | Awaitable[Message]]
) -> Message:
    await wait
    return await now_or_later(carry())


async def _administer(
    broker: BrokerContext,
    handler: Handler,
    context: RequestContext,
    frame: bytes,
    request: Message,
    carry: Carry,
) -> bytes:
    try:
        answer = await administer(broker, context, frame, request, carry)
    except Exception as error:
        trouble = _as_api_error(context, error)
        if context.is_forwarded and trouble.code is ErrorCode.NOT_CONTROLLER:
            raise  # It is the envelope that is refused, and sent again.
        answer = handler.refuse(request, trouble)
    return answer if isinstance(answer, bytes) else _encode(context, answer)


async def _finish(
    handler: Handler, context: RequestContext, request: Message, coming: Awaitable[Message]
) -> bytes:
    try:
        reply = await coming
    except Exception as error:  # noqa: BLE001 (it is answered, and logged if it is a bug)
        reply = handler.refuse(request, _as_api_error(context, error))
    return _encode(context, reply)


def _encode(context: RequestContext, reply: Message) -> bytes:
    return encode_response(context.api_key, context.api_version, context.correlation_id, reply)


def _as_api_error(context: RequestContext, error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    _log.error(
        "request failed with an internal error: api=%s version=%d peer=%s",
        APIS[context.api_key].name,
        context.api_version,
        context.peer,
        exc_info=error,
    )
    return ApiError(
        ErrorCode.UNKNOWN_SERVER_ERROR, "The broker failed. Its log contains the reason."
    )


@cache
def _handler(api_key: int) -> Handler:
    module: Any = import_module(f"headrace.handlers.{APIS[api_key].schema}")
    return cast(Handler, module)
