"""AlterPartition, version 3: change the ISR at a leader's request. Brokers only.

The controller decides; an error in the response is its decision.
"""

from headrace.model.errors import ApiError
from headrace.requests.context import BrokerContext, RequestContext
from headrace.wire.codec import Message


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    return await broker.controller.serve(context.api_key, request)


def refuse(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code}
