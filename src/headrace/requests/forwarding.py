"""Forwards requests to the controller.

1. A forwarded request is not forwarded again.
2. Without a controller, or after NOT_CONTROLLER, the request is retried until its timeout.
   If the connection is lost after the request was sent, its outcome is unknown: the response is
   REQUEST_TIMED_OUT, and the request is not sent again.
3. The response waits until this broker's image contains the change.
4. A request of which all items are denied is not forwarded.
5. The store confirms that this broker is the controller before a request is executed. A former
   controller would otherwise reject valid requests, because of topics in its outdated image.
6. The controller completes a request although its client disconnects, as Kafka does.
"""

import asyncio
from collections.abc import Awaitable, Callable

from headrace.cluster.peers import Unreachable
from headrace.coordination.port import StoreError, StoreUnavailable
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.mutations import throttle_time
from headrace.requests.permissions import is_denied_completely
from headrace.requests.replies import now_or_later
from headrace.runtime.link import LinkBroken
from headrace.wire.apis import CREATE_ACLS, DELETE_ACLS, ENVELOPE
from headrace.wire.codec import Message

_TIMEOUT_MS_DEFAULT = 30_000
_RETRY_S = 0.05
_MUST_BE_APPLIED = frozenset((CREATE_ACLS, DELETE_ACLS))
"""When these requests succeed, this broker must already apply the changed ACLs."""


Execute = Callable[[], Message | Awaitable[Message]]
"""Executes a request on this broker."""


async def execute_on_controller(
    broker: BrokerContext, context: RequestContext, frame: bytes, request: Message, execute: Execute
) -> Message | bytes:
    """The response of this broker, or the response frame of the controller."""
    if context.is_forwarded or context.is_internal:
        if not broker.controller.is_controller:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        reply = await _execute_as_controller(broker, execute)
        if reply is None or (context.is_forwarded and _is_not_controller(reply)):
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return reply
    is_controller = broker.controller.is_controller
    if not is_controller and is_denied_completely(broker, context, request):
        return await now_or_later(execute())
    timeout_ms = request.get("timeout_ms", _TIMEOUT_MS_DEFAULT)
    wait_s = (timeout_ms if timeout_ms > 0 else _TIMEOUT_MS_DEFAULT) / 1000
    deadline = broker.clock.monotonic() + wait_s
    while True:
        left_s = deadline - broker.clock.monotonic()
        if broker.controller.is_controller:
            reply = await _execute_as_controller(broker, execute)
            if reply is not None and (left_s <= 0 or not _is_not_controller(reply)):
                return reply
        if left_s <= 0:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "No controller is available.")
        if not broker.controller.is_controller:
            response = await _forward(broker, context, frame, left_s)
            if response is not None:
                context.throttle_ms = throttle_time(context, response)
                is_applied = await _wait_for_image(broker, deadline)
                if not is_applied and context.api_key in _MUST_BE_APPLIED:
                    raise ApiError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        "The controller changed the ACLs, but this broker does not apply them yet.",
                    )
                return response
        await asyncio.sleep(_RETRY_S)


async def _execute_as_controller(broker: BrokerContext, execute: Execute) -> Message | None:
    """The response, or None if this broker is no longer the controller."""
    task = asyncio.get_running_loop().create_task(_confirm_and_execute(broker, execute))
    task.add_done_callback(_read_exception)
    try:
        return await asyncio.shield(task)
    except ApiError as error:
        if error.code is not ErrorCode.NOT_CONTROLLER:
            raise
        return None


async def _confirm_and_execute(broker: BrokerContext, execute: Execute) -> Message:
    await broker.controller.confirm()
    return await now_or_later(execute())


def _read_exception(task: asyncio.Task[Message]) -> None:
    """After a disconnection, no other code reads it, and asyncio would log it."""
    if not task.cancelled():
        task.exception()


def _is_not_controller(reply: Message) -> bool:
    """Whether nothing was changed because this broker is not the controller."""
    codes = [
        entry["error_code"]
        for entries in reply.values()
        if isinstance(entries, list)
        for entry in entries
        if "error_code" in entry
    ]
    return bool(codes) and all(code == ErrorCode.NOT_CONTROLLER for code in codes)


async def _forward(
    broker: BrokerContext, context: RequestContext, frame: bytes, timeout_s: float
) -> bytes | None:
    """The controller's response frame; None if no controller is available."""
    envelope = {
        "request_data": frame,
        "request_principal": context.principal.encode(),
        "client_host_address": address_bytes(context.peer),
    }
    try:
        reply = await broker.controller.to_controller(ENVELOPE, 0, envelope, timeout_s)
    except Unreachable:
        return None
    except LinkBroken:
        raise ApiError(
            ErrorCode.REQUEST_TIMED_OUT,
            "The connection to the controller was lost before it responded.",
        ) from None
    code = ErrorCode(reply["error_code"])
    if code is ErrorCode.NOT_CONTROLLER:
        return None
    if code is not ErrorCode.NONE:
        raise ApiError(code)
    response: bytes = reply["response_data"]
    return response


async def _wait_for_image(broker: BrokerContext, deadline: float) -> bool:
    """Wait until the image contains the change. Returns False at the deadline or on a store error.

    Most responses are correct even then.
    """
    left_s = max(deadline - broker.clock.monotonic(), 0.0)
    try:
        async with asyncio.timeout(left_s):
            await broker.controller.refresh()
    except (TimeoutError, StoreUnavailable, StoreError):
        return False
    return True


def address_bytes(peer: str) -> bytes:
    from ipaddress import ip_address

    try:
        return ip_address(peer.rpartition(":")[0].strip("[]").partition("%")[0]).packed
    except ValueError:
        return b""


def address_text(address: bytes) -> str:
    from ipaddress import ip_address

    try:
        return str(ip_address(address))
    except ValueError:
        return "an unknown address"
