"""Errors of requests, as the commands print them: with the reason and the next step."""

import pytest

from headrace.cli.connection import describe
from headrace.client import InvalidTopic, NotAuthorized, RequestFailed
from headrace.client.core.errors import topic_error
from headrace.model.errors import ErrorCode


def test_invalid_topic_name_is_explained() -> None:
    error = topic_error(ErrorCode.INVALID_TOPIC, "bad name")
    assert isinstance(error, InvalidTopic)
    assert describe(error) == (
        "Invalid topic name 'bad name': use at most 249 letters, digits, '.', '_' and '-'"
    )


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, NotAuthorized, "not authorized for the topic 'a'"),
        (ErrorCode.LEADER_NOT_AVAILABLE, RequestFailed, "(LEADER_NOT_AVAILABLE)"),
    ],
)
def test_errors_of_topics_name_the_topic(code: int, kind: type, text: str) -> None:
    error = topic_error(code, "a")
    assert isinstance(error, kind)
    assert text in error.message


def test_error_is_named_once() -> None:
    named = RequestFailed(
        ErrorCode.OFFSET_NOT_AVAILABLE, "no offset for a-0 (OFFSET_NOT_AVAILABLE)"
    )
    assert str(named) == "no offset for a-0 (OFFSET_NOT_AVAILABLE)"
    assert str(RequestFailed(ErrorCode.INVALID_REQUEST, "why")) == "INVALID_REQUEST: why"


def test_disabled_acls_name_the_setting() -> None:
    error = RequestFailed(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    assert "set authorizer.class.name for every broker" in describe(error)
