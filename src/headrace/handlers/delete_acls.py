"""DeleteAcls, versions 1 to 3: delete ACLs that match filters.

- Each filter has its own result, with the deleted ACLs. At most 10,000 are deleted by one request.
- Responds when this broker no longer applies the deleted ACLs. Other brokers stop within a
  second. Fetch requests that wait are checked again before their response.
- Any broker accepts the request and forwards it to the controller.
- Without an authorizer, returns SECURITY_DISABLED.
- Requires: Alter on the cluster.
- Versions: 1 to 3. Since 3, the resource type User.
"""

from headrace.model.acls import AclFilter
from headrace.model.errors import ApiError
from headrace.requests.acl_requests import acl_message, check_enabled, resource_message
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import failure
from headrace.security.acl_decoding import acl_filter
from headrace.wire.codec import Message


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    check_enabled(broker)
    results: list[Message] = []
    filters: dict[int, AclFilter] = {}
    for number, item in enumerate(request["filters"]):
        results.append({"error_message": None, "matching_acls": []})
        try:
            filters[number] = acl_filter(item)
        except ApiError as error:
            results[number] |= failure(error)
    deleted = await broker.controller.delete_acls(list(filters.values()))
    for acl in dict.fromkeys(acl for acls in deleted for acl in acls):
        broker.audit.changed(context.principal, context.host, "ACL deleted", acl=str(acl))
    for number, acls in zip(filters, deleted, strict=True):
        results[number]["matching_acls"] = [
            {"error_message": None, **resource_message(acl), **acl_message(acl)} for acl in acls
        ]
    return {"filter_results": results}


def error_response(request: Message, error: ApiError) -> Message:
    empty: Message = {"matching_acls": []}
    return {"filter_results": [{**failure(error), **empty} for _ in request["filters"]]}
