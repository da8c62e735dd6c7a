"""InitProducerId, versions 0 to 5: return a producer id for an idempotent producer.

- A producer that sends its current id (KIP-360) also gets a new one, as in Kafka: without a
  transactional id, no state connects the two ids.
- Requires: IdempotentWrite on the cluster, or Write on any topic.
- Versions: 0 to 5. Since 3, a producer can send its current id. Kafka marks 6 (KIP-939) unstable.

Gaps: transactions are not supported. A transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
the only error on which librdkafka, kafka-python, aiokafka and Java stop immediately; librdkafka
retries almost any other error forever.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.authorization import is_allowed, is_denied
from headrace.requests.context import BrokerContext, RequestContext
from headrace.security.authorizer import ANY_TOPIC, CLUSTER, Operation
from headrace.wire.codec import Message

_NONE = -1


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    if request["transactional_id"] == "":
        raise ApiError(ErrorCode.INVALID_REQUEST, "transactional_id must not be empty.")
    if request["transactional_id"] is not None:
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not is_allowed(broker, context, Operation.IDEMPOTENT_WRITE, CLUSTER) and is_denied(
        broker, context, Operation.WRITE, ANY_TOPIC
    ):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    current = request.get("producer_id", _NONE), request.get("producer_epoch", _NONE)
    if (current[0] == _NONE) != (current[1] == _NONE):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "Set both producer_id and producer_epoch, or neither."
        )
    return {"producer_id": await broker.controller.next_producer_id(), "producer_epoch": 0}


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code, "producer_id": _NONE, "producer_epoch": _NONE}
