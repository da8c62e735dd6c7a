"""CreateAcls, versions 1 to 3: add ACLs.

- Each ACL has its own result. An ACL that already exists succeeds.
- Rejects hosts that are not `*`, an IP address or a CIDR range, and operations that the resource
  type does not have (INVALID_REQUEST). Kafka stores such ACLs.
- Responds when this broker applies the new ACLs. Other brokers apply them within a second.
- Any broker accepts the request and forwards it to the controller.
- Without an authorizer, returns SECURITY_DISABLED.
- Requires: Alter on the cluster.
- Versions: 1 to 3. Since 3, the resource type User.
"""

from headrace.model.acls import Acl
from headrace.model.errors import ApiError
from headrace.requests.acl_requests import check_enabled
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import failure
from headrace.security.acl_decoding import new_acl
from headrace.wire.codec import Message


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    check_enabled(broker)
    results: list[Message] = []
    acls: dict[Acl, None] = {}
    for item in request["creations"]:
        try:
            acls[new_acl(item)] = None
            results.append({"error_message": None})
        except ApiError as error:
            results.append(failure(error))
    await broker.controller.create_acls(list(acls))
    for acl in acls:
        broker.audit.changed(context.principal, context.host, "ACL created", acl=str(acl))
    return {"results": results}


def error_response(request: Message, error: ApiError) -> Message:
    return {"results": [failure(error) for _ in request["creations"]]}
