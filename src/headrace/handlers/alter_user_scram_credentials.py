"""AlterUserScramCredentials, version 0: create, replace and delete credentials of users.

- Each user has its own result. A user that occurs twice gets DUPLICATE_RESOURCE.
- A name that SASLprep changes, or that starts or ends with a space, gets UNACCEPTABLE_CREDENTIAL.
  Kafka accepts such names. They can be deleted.
- If a credential is deleted or replaced, all brokers close the connections that logged in with it.
- Any broker accepts the request and forwards it to the controller.
- Requires: Alter on the cluster.
- Versions: 0.

Gaps: an empty salt is rejected, because no client could log in with it; Kafka stores it.
"""

from collections.abc import Mapping

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import failure, repeated
from headrace.security.scram import credential_of
from headrace.security.users import check_credential, check_new_user, check_user
from headrace.wire.codec import Message


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    items = [*request["deletions"], *request["upsertions"]]
    twice = repeated(item["name"] for item in items)
    results: dict[str, Message] = {}
    for item in items:
        name = item["name"]
        if name in results:
            continue
        results[name] = {"user": name, "error_message": None}
        try:
            if name in twice:
                raise ApiError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            await (_replace if "salt" in item else _delete)(broker, item)
            event = "credential stored" if "salt" in item else "credential deleted"
            scram = check_user(name, item["mechanism"])
            broker.audit.changed(
                context.principal, context.host, event, user=name, mechanism=scram.name
            )
        except ApiError as error:
            results[name] |= failure(error)
    return {"results": list(results.values())}


def error_response(request: Message, error: ApiError) -> Message:
    names = dict.fromkeys(item["name"] for item in request["deletions"] + request["upsertions"])
    return {"results": [{"user": name, **failure(error)} for name in names]}


async def _replace(broker: BrokerContext, item: Message) -> None:
    scram = check_new_user(item["name"], item["mechanism"])
    salt, salted, iterations = item["salt"], item["salted_password"], item["iterations"]
    check_credential(iterations, salt, salted)
    text = credential_of(scram, salted, salt, iterations).to_text()
    await broker.controller.alter_user(item["name"], lambda current: {**current, scram.name: text})


async def _delete(broker: BrokerContext, item: Message) -> None:
    scram = check_user(item["name"], item["mechanism"])

    def remove(current: Mapping[str, str]) -> Mapping[str, str]:
        if scram.name not in current:
            raise ApiError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        return {name: text for name, text in current.items() if name != scram.name}

    await broker.controller.alter_user(item["name"], remove)
