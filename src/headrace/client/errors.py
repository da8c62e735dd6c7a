"""What a program that uses the client may have to catch.

Every exception is a ClientError. RequestFailed carries the broker's error code, and the codes
that programs act on have their own class, so that `except UnknownTopic` reads as it means.
"""

from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition

# Codes after which the same request may succeed, Kafka's "retriable", with the ones that only
# a wrong picture of the cluster explains.
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
    """Anything that the client reports."""

    retriable = False
    stale_metadata = False


class ClientClosed(ClientError):
    """The client, producer or consumer was closed before this could finish."""


class Unreachable(ClientError, ConnectionError):
    """No broker could be reached."""


class Disconnected(ClientError, ConnectionError):
    """A connection broke with a request under way: its outcome is unknown."""

    retriable = True
    stale_metadata = True


class TimedOut(ClientError, TimeoutError):
    """Retries went on until the deadline; the message names the last trouble."""


class UnsupportedVersion(ClientError):
    """The broker speaks no version of a request that this client speaks."""


class ProtocolViolation(ClientError):
    """The peer answered with something that is not the Kafka protocol."""


class RequestFailed(ClientError):
    """A broker answered with an error code."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.partition: TopicPartition | None = None
        """Which one a consumer was reading."""
        self.message = message or code.name.replace("_", " ").capitalize() + "."
        self.retriable = code in RETRIABLE
        self.stale_metadata = code in STALE_METADATA

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class UnknownTopic(RequestFailed):
    """The cluster has no such topic or partition."""


class TopicExists(RequestFailed):
    """A topic of that name is there already."""


class InvalidConfig(RequestFailed):
    """A setting is unknown, or its value is not legal."""


class InvalidTopic(RequestFailed):
    """A topic name that the cluster does not allow."""


class OffsetOutOfRange(RequestFailed):
    """The offset lies before the log's start or after its end."""


class RecordTooLarge(RequestFailed):
    """A record, with its batch, is larger than the topic allows."""


class CommitFailed(RequestFailed):
    """The group has given the partitions to others, who may read the records again."""


class NoOffset(ClientError):
    """A group has no offset of a partition, and auto_offset_reset says to choose none."""


class NotAuthorized(RequestFailed):
    """The cluster does not let this client do that."""


_CLASSES: dict[ErrorCode, type[RequestFailed]] = {
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
_KNOWN = {int(code): code for code in ErrorCode}


def error_code(number: int) -> ErrorCode:
    """The code of a number; one that a newer broker knows alone is an unknown server error."""
    return _KNOWN.get(number, ErrorCode.UNKNOWN_SERVER_ERROR)


def request_failed(number: int, message: str | None = None) -> RequestFailed:
    """The exception for an error code of a response, of the class that programs catch."""
    code = error_code(number)
    if code == ErrorCode.UNKNOWN_SERVER_ERROR and number != int(code):
        message = message or f"The broker returned the unknown error code {number}."
    return _CLASSES.get(code, RequestFailed)(code, message or "")
