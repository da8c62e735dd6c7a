"""The exceptions of the client.

All are subclasses of ClientError. RequestFailed has the broker's error code. Codes that programs
handle have their own class, such as UnknownTopic.
"""

from headrace.model.errors import ErrorCode, default_message
from headrace.model.topics import TopicPartition

# Codes that mean that the client's metadata is stale. All of them are also retriable.
STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    }
)
# Codes after which the same request can succeed later.
RETRIABLE = STALE_METADATA | frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)


class ClientError(Exception):
    """The base class of all errors of the client."""

    retriable = False
    stale_metadata = False


class ClientClosed(ClientError):
    """The client, producer or consumer was closed before the call finished."""


class Unreachable(ClientError, ConnectionError):
    """No broker could be reached."""


class Disconnected(ClientError, ConnectionError):
    """The connection was lost while a request was in flight, so its outcome is unknown."""

    retriable = True
    stale_metadata = True


class TimedOut(ClientError, TimeoutError):
    """No attempt succeeded before the deadline; the message contains the last error."""


class UnsupportedVersion(ClientError):
    """Broker and client have no common version of a request."""


class ProtocolViolation(ClientError):
    """The server sent data that violates the Kafka protocol."""


class AuthenticationFailed(ClientError):
    """The broker rejected the user name, the password or the SASL mechanism."""


class RequestFailed(ClientError):
    """A broker returned an error code."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.partition: TopicPartition | None = None
        """The partition that a consumer was reading."""
        self.message = message or default_message(code)
        self.retriable = code in RETRIABLE
        self.stale_metadata = code in STALE_METADATA

    def __str__(self) -> str:
        name = self.code.name
        return self.message if name in self.message else f"{name}: {self.message}"


class UnknownTopic(RequestFailed):
    """The topic or partition does not exist."""


class TopicExists(RequestFailed):
    """A topic of that name already exists."""


class InvalidConfig(RequestFailed):
    """A setting is unknown, or its value is not valid."""


class InvalidTopic(RequestFailed):
    """The topic name is not valid."""


class OffsetOutOfRange(RequestFailed):
    """The offset is before the log start or after the log end."""


class RecordTooLarge(RequestFailed):
    """A record, with its batch, is larger than the topic allows."""


class CommitFailed(RequestFailed):
    """The group has assigned the partitions to other members, which might read records again."""


class NoOffset(ClientError):
    """A group has no committed offset for a partition, and auto_offset_reset is "none"."""


class NotAuthorized(RequestFailed):
    """The user of the client does not have the required permission."""


_CLASS_BY_CODE: dict[ErrorCode, type[RequestFailed]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopic,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopic,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicExists,
    ErrorCode.INVALID_CONFIG: InvalidConfig,
    ErrorCode.INVALID_TOPIC: InvalidTopic,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.MESSAGE_TOO_LARGE: RecordTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordTooLarge,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: NotAuthorized,
}
_CODE_BY_NUMBER = {int(code): code for code in ErrorCode}


def error_code(number: int) -> ErrorCode:
    """The ErrorCode of a number; UNKNOWN_SERVER_ERROR for a number that is not in ErrorCode."""
    return _CODE_BY_NUMBER.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)


def request_failed(number: int, message: str | None = None) -> RequestFailed:
    """The exception for an error code in a response."""
    code = error_code(number)
    if code == ErrorCode.UNKNOWN_SERVER_ERROR and number != int(code):
        message = message or f"The broker returned the unknown error code {number}."
    return _CLASS_BY_CODE.get(code, RequestFailed)(code, message or "")


def topic_error(code: int, topic: str) -> RequestFailed:
    """The exception for a topic's error code in a Metadata response, which contains no message."""
    if code == ErrorCode.INVALID_TOPIC:
        return request_failed(
            code,
            f"invalid topic name {topic!r}: use at most 249 letters, digits, '.', '_' and '-'",
        )
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return request_failed(code, f"not authorized for the topic {topic!r}")
    return request_failed(code, f"the topic {topic!r} cannot be used ({ErrorCode(code).name})")
