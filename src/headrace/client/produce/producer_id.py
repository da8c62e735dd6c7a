"""Requests a producer id, which an idempotent producer needs. Pure."""

from typing import NamedTuple

from headrace.client.core.errors import request_failed
from headrace.client.core.operation import ANY, Operation, OperationEngine, Send, retrying
from headrace.model.errors import ErrorCode
from headrace.wire.apis import INIT_PRODUCER_ID

_SERVER_ERROR = ErrorCode.UNKNOWN_SERVER_ERROR


class ProducerId(NamedTuple):
    number: int
    epoch: int


def init_producer_id(engine: OperationEngine, timeout_ms: float) -> Operation[ProducerId]:
    """Request a new producer id and epoch from any broker."""
    fields = {
        "transactional_id": None,
        "transaction_timeout_ms": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }

    def attempt() -> Operation[ProducerId]:
        response = yield Send(ANY, INIT_PRODUCER_ID, fields)
        code = response["error_code"]
        if code:
            # The response has no message, and Kafka has no error code for a full disk.
            why = (
                ": its disk might be full; its log contains the reason"
                if code == _SERVER_ERROR
                else ""
            )
            raise request_failed(code, f"the broker returned no producer id{why}")
        return ProducerId(response["producer_id"], response["producer_epoch"])

    return (yield from retrying(engine, "getting a producer id", attempt, timeout_ms))
