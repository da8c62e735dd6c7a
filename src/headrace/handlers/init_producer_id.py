"""InitProducerId, versions 0 to 5: an id for an idempotent producer.

A producer that shows an id it has (KIP-360) gets a new one as well: without a transactional id
nothing ties it to the old one, and Kafka does the same.
Gaps: transactions are not built. A transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
the one code that librdkafka, kafka-python, aiokafka and Java all give up on at once; librdkafka
would ask again for ever after almost any other.
"""

from headrace.handlers.context import BrokerContext, RequestContext
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.codec import Message

_NONE = -1


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    if request["transactional_id"] == "":
        raise ApiError(ErrorCode.INVALID_REQUEST, "transactional_id must not be empty.")
    if request["transactional_id"] is not None:
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    shown = request.get("producer_id", _NONE), request.get("producer_epoch", _NONE)
    if (shown[0] == _NONE) != (shown[1] == _NONE):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "Set both producer_id and producer_epoch, or neither."
        )
    return {"producer_id": await broker.controller.next_producer_id(), "producer_epoch": 0}


def refuse(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code, "producer_id": _NONE, "producer_epoch": _NONE}
