"""DescribeAcls, versions 1 to 3: list ACLs that match a filter.

- Every broker responds, from its image.
- Without an authorizer, returns SECURITY_DISABLED.
- Requires: Describe on the cluster.
- Versions: 1 to 3. Since 3, the resource type User.
"""

from headrace.model.acls import Acl
from headrace.model.errors import ApiError
from headrace.requests.acl_requests import acl_message, check_enabled, resource_message
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import failure
from headrace.security.acl_decoding import acl_filter
from headrace.wire.codec import Message


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    check_enabled(broker)
    wanted = acl_filter(request)
    by_pattern: dict[tuple[object, ...], list[Acl]] = {}
    for acls in broker.image.acls.values():
        for acl in acls or ():
            if wanted.matches(acl):
                by_pattern.setdefault(acl[:3], []).append(acl)
    return {
        "error_message": None,
        "resources": [
            {**resource_message(acls[0]), "acls": [acl_message(acl) for acl in acls]}
            for _, acls in sorted(by_pattern.items())
        ],
    }


def error_response(request: Message, error: ApiError) -> Message:
    return {**failure(error), "resources": []}
