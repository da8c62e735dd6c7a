"""Getting a producer id, without which a producer cannot be idempotent. Pure."""

from typing import NamedTuple

from headrace.client.errors import request_failed
from headrace.client.operation import ANY, Ask, Operation, Session, retrying
from headrace.wire.apis import INIT_PRODUCER_ID


class ProducerId(NamedTuple):
    number: int
    epoch: int


def init_producer_id(session: Session, timeout_ms: float) -> Operation[ProducerId]:
    """A fresh id, from any broker."""
    fields = {
        "transactional_id": None,
        "transaction_timeout_ms": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }

    def attempt() -> Operation[ProducerId]:
        reply = yield Ask(ANY, INIT_PRODUCER_ID, fields)
        if reply["error_code"]:
            raise request_failed(reply["error_code"], "the broker gave no producer id")
        return ProducerId(reply["producer_id"], reply["producer_epoch"])

    return (yield from retrying(session, "getting a producer id", attempt, timeout_ms))
