"""Turns a request frame into a response frame, for all APIs but Produce, Fetch and OffsetCommit.

A handler is the module of headrace.handlers that is named after its API. `handle(broker, context,
request)` returns the response or an awaitable of it. `error_response(request, error)` returns a
response with the same error in every entry. `prepare(broker, context, request)` is optional: the
broker that received a request awaits it before the controller executes the request. All of them use
plain dicts (wire/codec.py). A module is imported with the first request of its API.

1. A frame that breaks the protocol raises MalformedRequest, and its connection is closed.
2. A handler returns an ApiError of one item in the entry of that item. An ApiError of the complete
   request is raised to this module, which responds with `error_response`.
3. Any other exception is a bug: it is logged once, with its traceback, and the response has
   UNKNOWN_SERVER_ERROR.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import cache, partial
from importlib import import_module
from typing import Any, Protocol, cast

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.forwarding import Execute, execute_on_controller
from headrace.requests.group_requests import coordinator_wait
from headrace.requests.permissions import check_request
from headrace.requests.replies import now_or_later
from headrace.wire.api_versions import respond_api_versions
from headrace.wire.apis import API_VERSIONS, APIS, CONTROLLER_APIS
from headrace.wire.codec import MalformedRequest, Message, decode_request, encode_response

_log = logging.getLogger(__name__)


class Handler(Protocol):
    """The functions of a handler module."""

    handle: Callable[[BrokerContext, RequestContext, Message], Message | Awaitable[Message]]
    error_response: Callable[[Message, ApiError], Message]


def handle_frame(
    broker: BrokerContext, context: RequestContext, frame: bytes, body_at: int
) -> bytes | Awaitable[bytes]:
    """The response frame without its length, or an awaitable of it."""
    version = context.api_version
    if context.api_key == API_VERSIONS:
        return respond_api_versions(version, context.correlation_id, frame, body_at)
    if APIS[context.api_key].is_internal and not context.is_internal:
        name = APIS[context.api_key].name
        raise MalformedRequest(f"{name} is accepted only on the inter-broker listener")
    request = decode_request(context.api_key, version, frame, body_at)
    handler = _handler(context.api_key)
    execute = partial(handler.handle, broker, context, request)
    if context.api_key in CONTROLLER_APIS:
        return _respond_from_controller(
            broker, handler, context, frame, request, cast(Execute, execute)
        )
    try:
        check_request(broker, context)
        ready = coordinator_wait(broker, context, request)
        reply = execute() if ready is None else _execute_after(ready, execute)
    except Exception as error:  # noqa: BLE001 (returned as an error, and logged if it is a bug)
        reply = handler.error_response(request, _as_api_error(context, error))
    if isinstance(reply, dict):
        return _encode(context, reply)
    return _finish(handler, context, request, reply)


async def _execute_after(
    wait: Awaitable[None], execute: Callable[[], Message | Awaitable[Message]]
) -> Message:
    await wait
    return await now_or_later(execute())


async def _respond_from_controller(
    broker: BrokerContext,
    handler: Handler,
    context: RequestContext,
    frame: bytes,
    request: Message,
    execute: Execute,
) -> bytes:
    try:
        check_request(broker, context)
        prepare = getattr(handler, "prepare", None)
        if prepare is not None and not context.is_forwarded:
            await prepare(broker, context, request)
        response = await execute_on_controller(broker, context, frame, request, execute)
    except Exception as error:
        failure = _as_api_error(context, error)
        if context.is_forwarded and failure.code is ErrorCode.NOT_CONTROLLER:
            raise  # The Envelope gets this error, and its sender retries.
        response = handler.error_response(request, failure)
    if isinstance(response, bytes):
        if context.apply_quota is not None:
            context.apply_quota(context.throttle_ms)
        return response
    return _encode(context, response)


async def _finish(
    handler: Handler, context: RequestContext, request: Message, pending: Awaitable[Message]
) -> bytes:
    try:
        reply = await pending
    except Exception as error:  # noqa: BLE001 (returned as an error, and logged if it is a bug)
        reply = handler.error_response(request, _as_api_error(context, error))
    return _encode(context, reply)


def _encode(context: RequestContext, reply: Message) -> bytes:
    throttle_ms = context.throttle_ms
    if context.apply_quota is not None:
        throttle_ms = context.apply_quota(throttle_ms)
    if throttle_ms:
        reply = {**reply, "throttle_time_ms": throttle_ms}
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
        ErrorCode.UNKNOWN_SERVER_ERROR,
        "The request failed with an internal error. See the broker's log.",
    )


@cache
def _handler(api_key: int) -> Handler:
    module: Any = import_module(f"headrace.handlers.{APIS[api_key].schema}")
    return cast(Handler, module)
