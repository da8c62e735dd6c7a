"""AlterPartition, version 3: a leader asks for another ISR. Between brokers alone.

What may be is the controller's to decide, and an error is its answer.
"""

from headrace.handlers.context import BrokerContext, RequestContext
from headrace.model.errors import ApiError
from headrace.wire.codec import Message


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    return await broker.controller.serve(context.api_key, request)


def refuse(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code}
