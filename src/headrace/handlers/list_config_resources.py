"""ListConfigResources, versions 0 and 1: list resources that have settings.

- Lists all topics and brokers, and the groups that have settings.
- Requires: DescribeConfigs on the cluster.
- Versions: 0 and 1. 0 requests client metrics only. 1 requests some types, or all if it names none.

Gaps: loggers and client metrics are not supported, so none are listed.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.config_resources import BROKER, GROUP, TOPIC
from headrace.requests.context import BrokerContext, RequestContext
from headrace.wire.codec import Message

BROKER_LOGGER = 8
CLIENT_METRICS = 16
KINDS = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    requested = (request["resource_types"] or KINDS) if context.api_version else (CLIENT_METRICS,)
    for kind in requested:
        if kind not in KINDS:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    image = broker.image
    named = {
        TOPIC: image.topics,
        BROKER: map(str, image.brokers),
        GROUP: image.group_configs,
    }
    return {
        "config_resources": [
            {"resource_name": name, "resource_type": kind}
            for kind, names in named.items()
            if kind in requested
            for name in names
        ]
    }


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code}
