"""Handles the APIs by which brokers call the controller.

The controller decides; an error in the response is its decision. A broker that is not the
controller returns NOT_CONTROLLER.
"""

from headrace.model.errors import ApiError
from headrace.requests.context import BrokerContext, RequestContext
from headrace.wire.codec import Message


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    return await broker.controller.serve(context.api_key, request)


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code}
