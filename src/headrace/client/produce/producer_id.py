"""Requests a producer id, which an idempotent producer needs. Pure."""

from typing import NamedTuple

from headrace.client.core.errors import request_failed
from headrace.client.core.operation import ANY, Ask, Operation, Session, retrying
from headrace.model.errors import ErrorCode
from headrace.wire.apis import INIT_PRODUCER_ID

_SERVER_ERROR = ErrorCode.UNKNOWN_SERVER_ERROR


class ProducerId(NamedTuple):
    number: int
    epoch: int


def init_producer_id(session: Session, timeout_ms: float) -> Operation[ProducerId]:
    """Get a new id from any broker."""
    fields = {
        "transactional_id": None,
        "transaction_timeout_ms": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }

    def attempt() -> Operation[ProducerId]:
        reply = yield Ask(ANY, INIT_PRODUCER_ID, fields)
        code = reply["error_code"]
        if code:
            # The response has no message, and no error code means a full disk.
            why = (
                ": its disk might be full; its log contains the reason"
                if code == _SERVER_ERROR
                else ""
            )
            raise request_failed(code, f"the broker returned no producer id{why}")
        return ProducerId(reply["producer_id"], reply["producer_epoch"])

    return (yield from retrying(session, "getting a producer id", attempt, timeout_ms))
