"""DescribeCluster, versions 0 to 2: list the brokers and the controller.

- Lists brokers that have the listener of the request.
- Requires: nothing. To get the authorized operations, Describe on the cluster.
- Versions: 0 to 2. Since 1, a client can request controllers (KIP-919). Every controller is a
  broker, so this returns MISMATCHED_ENDPOINT_TYPE, on which the client requests brokers. Since 2, a
  client can request fenced brokers, of which Headrace has none.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.authorization import cluster_operations
from headrace.requests.cluster_view import brokers_on, controller_for
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import failure
from headrace.wire.codec import Message

_BROKERS = 1
_CONTROLLERS = 2


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    endpoint_type = request.get("endpoint_type", _BROKERS)
    if endpoint_type == _CONTROLLERS:
        raise ApiError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE, "This endpoint is a broker, not a controller."
        )
    if endpoint_type != _BROKERS:
        raise ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)
    listed = brokers_on(broker.image.brokers, context.listener)
    return {
        "endpoint_type": _BROKERS,
        "cluster_id": broker.image.cluster_id,
        "controller_id": controller_for(broker, listed),
        "brokers": [
            {
                "broker_id": info.node_id,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": info.rack,
            }
            for info, endpoint in listed
        ],
        "cluster_authorized_operations": cluster_operations(
            broker, context, request["include_cluster_authorized_operations"]
        ),
    }


def error_response(request: Message, error: ApiError) -> Message:
    return failure(error)
