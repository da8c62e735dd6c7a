"""Names of users: SASLprep, and names that look like another one."""

import pytest

from headrace.model.errors import ApiError, ErrorCode
from headrace.security.scram import SCRAMS, ScramFailed, ScramServer
from headrace.security.unknown_users import UnknownUsers
from headrace.security.user_names import name_error, saslprep
from headrace.security.users import check_new_user, check_user

SCRAM = next(iter(SCRAMS.values()))


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        # The examples of RFC 4013, section 3.
        ("I\xadX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\xaa", "a"),
        ("\u2168", "IX"),
        ("\x07", None),
        ("\u06271", None),
        # Others.
        ("\uff41dmin", "admin"),
        ("e\u0301ve", "\xe9ve"),
        ("a\xa0b", "a b"),
        ("\u0627\u0628", "\u0627\u0628"),
        ("\u0627b\u0628", None),
        ("\ufdd0", None),
    ],
)
def test_saslprep(text: str, prepared: str | None) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("name", ["alice", "CN=a,O=Mill", "a b", "\xe9ve", "\u4f60\u597d", "a@b"])
def test_name_is_accepted(name: str) -> None:
    assert name_error(name) == ""
    assert check_new_user(name, SCRAM.code) is SCRAM


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("admin ", "start or end with a space"),
        (" admin", "start or end with a space"),
        ("admin\n", "prohibits"),
        ("ad\0min", "prohibits"),
        ("\x7fadmin", "prohibits"),
        ("ad\u200bmin", "Use 'admin'"),
        ("ad\u202emin", "prohibits"),
        ("\uff41dmin", "Use 'admin'"),
        ("e\u0301ve", "Use '\xe9ve'"),
        ("admin\xa0", "Use 'admin '"),
        ("*", "stands for all users"),
        ("ANONYMOUS", "stands for clients that have not logged in"),
    ],
)
def test_look_alike_name_is_rejected_at_creation_and_login(name: str, reason: str) -> None:
    with pytest.raises(ApiError, match=reason) as rejected:
        check_new_user(name, SCRAM.code)
    assert rejected.value.code == ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert check_user(name, SCRAM.code) is SCRAM, "such a user can be deleted"
    server = ScramServer(SCRAM, lambda user: None, UnknownUsers(b"secret"))
    with pytest.raises(ScramFailed, match="the user name is not valid"):
        server.first(f"n,,n={name},r=nonce".encode(), "more")
