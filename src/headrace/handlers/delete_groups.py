"""DeleteGroups, versions 0 to 2: delete groups without members, and their offsets.

- Each group has its own result: NON_EMPTY_GROUP, or GROUP_ID_NOT_FOUND if it does not exist.
- Requires: Delete on the group.
- Versions: 0 to 2.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.authorization import check
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import now_or_later
from headrace.security.authorizer import Operation, group_resource
from headrace.wire.codec import Message


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    results = []
    for group_id in dict.fromkeys(request["groups_names"]):
        code = ErrorCode.NONE
        try:
            check(broker, context, Operation.DELETE, group_resource(group_id))
            await now_or_later(broker.groups().delete_group(group_id))
        except ApiError as error:
            code = error.code
        results.append({"group_id": group_id, "error_code": code})
    return {"results": results}


def error_response(request: Message, error: ApiError) -> Message:
    names = dict.fromkeys(request["groups_names"])
    return {"results": [{"group_id": name, "error_code": error.code} for name in names]}
