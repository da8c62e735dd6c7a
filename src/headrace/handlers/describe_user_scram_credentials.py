"""DescribeUserScramCredentials, version 0: list users and the mechanisms of their credentials.

- Every broker responds. Each user has its own result.
- Without names, the response lists all users.
- A name that occurs twice gets DUPLICATE_RESOURCE, an unknown user RESOURCE_NOT_FOUND.
- A denied request gets the error for the request and for each requested user, as in Kafka.
- Requires: Describe on the cluster.
- Versions: 0.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import failure, repeated
from headrace.security.scram import SCRAMS
from headrace.security.users import credentials_of
from headrace.wire.codec import Message


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    names = [user["name"] for user in request["users"] or ()]
    twice = repeated(names)
    users = broker.image.users
    results = []
    for name in dict.fromkeys(names) if names else sorted(users):
        infos = [
            {"mechanism": SCRAMS[mechanism].code, "iterations": credential.iterations}
            for mechanism, credential in credentials_of(users.get(name, {})).items()
        ]
        result: Message = {"user": name, "error_message": "", "credential_infos": infos}
        if name in twice:
            result |= _rejected(
                ErrorCode.DUPLICATE_RESOURCE,
                "Cannot describe SCRAM credentials for the same user twice in a single request: "
                + name,
            )
        elif not infos:
            if not names:
                continue  # The user has other settings only.
            result |= _rejected(
                ErrorCode.RESOURCE_NOT_FOUND,
                f"Attempt to describe a user credential that does not exist: {name}",
            )
        results.append(result)
    return {"error_message": "", "results": results}


def error_response(request: Message, error: ApiError) -> Message:
    # As in Kafka, the error is repeated for each requested user, without a name and without a text.
    result = {"user": "", "error_code": error.code, "error_message": None, "credential_infos": []}
    results = [result] * len(request["users"] or ())
    return {"error_code": error.code, "error_message": None, "results": results}


def _rejected(code: ErrorCode, text: str) -> Message:
    return {**failure(ApiError(code, text)), "credential_infos": []}
