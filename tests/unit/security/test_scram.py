"""SCRAM: the vector of RFC 7677, and changes to every field of a login."""

import hmac
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.sasl import MECHANISMS, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from headrace.security.scram import (
    SCRAMS,
    Credential,
    ScramFailed,
    ScramServer,
    credential_from_text,
    credential_of,
    salted_password,
    scram_of_code,
    verifies,
)
from headrace.security.scram_client import LoginFailed, ScramClient, login_client
from headrace.security.unknown_users import UnknownUsers
from headrace.security.user_names import name_error

UNKNOWN = UnknownUsers(bytes(range(32)))
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={CLIENT_NONCE}"
SERVER_FIRST = f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p={PROOF}"
SERVER_FINAL = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def credential(mechanism: str = SCRAM_SHA_256, password: str = "pencil") -> Credential:
    scram = SCRAMS[mechanism]
    return credential_of(scram, salted_password(scram, password, SALT, 4096), SALT, 4096)


PENCIL = {name: credential(name) for name in SCRAMS}


def server(users: dict[str, Credential] | None = None) -> ScramServer:
    users = {"user": PENCIL[SCRAM_SHA_256]} if users is None else users
    return ScramServer(SCRAMS[SCRAM_SHA_256], users.get, UNKNOWN)


def test_server_follows_the_vector_of_rfc_7677() -> None:
    exchange = server()
    assert exchange.first(FIRST.encode(), SERVER_NONCE).decode() == SERVER_FIRST
    assert exchange.final(FINAL.encode()).decode() == SERVER_FINAL
    assert exchange.user == "user"


def test_client_follows_the_vector_of_rfc_7677() -> None:
    client = ScramClient(SCRAMS[SCRAM_SHA_256], "user", "pencil", CLIENT_NONCE)
    assert client.next(b"") == FIRST.encode()
    assert client.next(SERVER_FIRST.encode()) == FINAL.encode()
    assert client.next(SERVER_FINAL.encode()) is None


@pytest.mark.parametrize(
    "first",
    [
        "",
        "n,,",
        "n=user,r=abc",
        "p=tls-unique,,n=user,r=abc",
        "y,,n=user,r=abc",
        "n,a=admin,n=user,r=abc",
        "n,a=,n=user,r=abc",
        "n,,m=x,n=user,r=abc",
        "n,,n=,r=abc",
        "n,,n=us,er,r=abc",
        "n,,n=us=er,r=abc",
        "n,,n=user,r=",
        "n,,n=user,r=a\x00c",
        "n,,n=user",
        "n,,r=abc,n=user",
        "n,,n=user,r=abc,tokenauth=true",
        "n,,n=" + "u" * 5000 + ",r=abc",
    ],
)
def test_server_rejects_first_message(first: str) -> None:
    with pytest.raises(ScramFailed):
        server().first(first.encode(), SERVER_NONCE)


def test_server_rejects_first_message_that_is_not_utf_8() -> None:
    with pytest.raises(ScramFailed):
        server().first(b"n,,n=us\xffer,r=abc", SERVER_NONCE)


@pytest.mark.parametrize(
    "final",
    [
        "",
        FINAL.replace("c=biws", "c=eSws"),  # y,,
        FINAL.replace("c=biws", "c=bixhPWFkbWluLA=="),  # n,a=admin,
        FINAL.replace("c=biws,", ""),
        FINAL.replace(SERVER_NONCE, SERVER_NONCE[:-1]),
        FINAL.replace(SERVER_NONCE, ""),
        FINAL.replace(CLIENT_NONCE, "x"),
        FINAL.replace(PROOF, "A" + PROOF[1:]),
        FINAL.replace(PROOF, PROOF[:-4]),
        FINAL.replace(PROOF, "===="),
        FINAL.partition(",p=")[0],
        f"{FINAL},x=1",
    ],
)
def test_server_rejects_final_message(final: str) -> None:
    exchange = server()
    exchange.first(FIRST.encode(), SERVER_NONCE)
    with pytest.raises(ScramFailed):
        exchange.final(final.encode())


@pytest.mark.parametrize(
    ("header", "is_accepted"), [("n,,", True), ("y,,", False), ("p=x,,", False)]
)
def test_channel_binding_is_compared_even_if_the_proof_is_right(
    header: str, is_accepted: bool
) -> None:
    exchange = server()
    exchange.first(FIRST.encode(), SERVER_NONCE)
    unproven = f"c={b64encode(header.encode()).decode()},r={CLIENT_NONCE}{SERVER_NONCE}"
    salted = salted_password(SCRAMS[SCRAM_SHA_256], "pencil", SALT, 4096)
    key = hmac.digest(salted, b"Client Key", "sha256")
    signed = f"{FIRST.removeprefix('n,,')},{SERVER_FIRST},{unproven}".encode()
    signature = hmac.digest(PENCIL[SCRAM_SHA_256].stored_key, signed, "sha256")
    proof = b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    final = f"{unproven},p={proof}".encode()
    if is_accepted:
        assert exchange.final(final).decode() == SERVER_FINAL
    else:
        with pytest.raises(ScramFailed, match="channel binding"):
            exchange.final(final)


def test_recorded_login_is_rejected_with_another_nonce() -> None:
    exchange = server()
    exchange.first(FIRST.encode(), "another")
    with pytest.raises(ScramFailed, match="nonce"):
        exchange.final(FINAL.encode())


def test_authorization_id_equal_to_the_user_is_accepted() -> None:
    exchange = server()
    first = f"n,a=user,n=user,r={CLIENT_NONCE}"
    assert exchange.first(first.encode(), SERVER_NONCE).startswith(b"r=")


def test_escaped_user_name_is_read() -> None:
    exchange = server({"a,b=c": PENCIL[SCRAM_SHA_256]})
    exchange.first(b"n,,n=a=2Cb=3Dc,r=abc", SERVER_NONCE)
    assert (exchange.user, exchange.credential) == ("a,b=c", PENCIL[SCRAM_SHA_256])


def test_unknown_user_gets_a_stable_salt_and_fails_at_the_proof() -> None:
    replies = set()
    for _ in range(3):
        exchange = server({})
        replies.add(exchange.first(FIRST.encode(), SERVER_NONCE))
        with pytest.raises(ScramFailed, match="proof"):
            exchange.final(FINAL.encode())
    (reply,) = replies
    assert reply.endswith(b",i=4096")
    assert len(reply) == len(SERVER_FIRST)
    other = ScramServer(SCRAMS[SCRAM_SHA_256], lambda _: None, UnknownUsers(b"another secret"))
    assert other.first(FIRST.encode(), SERVER_NONCE) != reply


def test_credential_that_changes_during_the_login_is_rejected() -> None:
    users = {"user": PENCIL[SCRAM_SHA_256]}
    exchange = server(users)
    exchange.first(FIRST.encode(), SERVER_NONCE)
    users["user"] = credential(password="another")
    with pytest.raises(ScramFailed):
        exchange.final(FINAL.encode())


def test_stored_text_is_read_and_written_as_kafka_stores_it() -> None:
    text = PENCIL[SCRAM_SHA_512].to_text()
    assert [part.partition("=")[0] for part in text.split(",")] == [
        "salt",
        "stored_key",
        "server_key",
        "iterations",
    ]
    assert credential_from_text(text) == PENCIL[SCRAM_SHA_512]


@given(st.text(max_size=200))
def test_invalid_stored_text_is_no_credential(text: str) -> None:
    assert credential_from_text(text) is None


@pytest.mark.parametrize("field", ["salt", "stored_key", "server_key", "iterations"])
def test_stored_text_without_a_field_is_no_credential(field: str) -> None:
    parts = PENCIL[SCRAM_SHA_256].to_text().split(",")
    without = ",".join(part for part in parts if not part.startswith(field))
    assert credential_from_text(without) is None


def test_credential_shows_no_secret() -> None:
    assert (
        "Credential(iterations=4096)" == repr(PENCIL[SCRAM_SHA_256]) == f"{PENCIL[SCRAM_SHA_256]}"
    )


@pytest.mark.parametrize("name", SCRAMS)
def test_password_verifies_only_its_credential(name: str) -> None:
    scram = SCRAMS[name]
    assert verifies(scram, PENCIL[name], "pencil")
    assert not verifies(scram, PENCIL[name], "pencils")
    assert not verifies(scram, UNKNOWN.credential(scram, "user"), "pencil")


def test_mechanisms_have_one_list() -> None:
    assert (PLAIN, *SCRAMS) == MECHANISMS
    assert [scram_of_code(code) for code in (0, 1, 2, 3)] == [None, *SCRAMS.values(), None]


@given(
    st.sampled_from(sorted(SCRAMS)),
    st.text(min_size=1, max_size=40).filter(lambda text: not name_error(text)),
)
def test_client_and_server_agree_on_any_valid_user_name(name: str, user: str) -> None:
    client = login_client(name, user, "pencil", "clientnonce")
    exchange = ScramServer(SCRAMS[name], {user: PENCIL[name]}.get, UNKNOWN)
    challenge = exchange.first(client.next(b"") or b"", "servernonce")
    assert client.next(exchange.final(client.next(challenge) or b"")) is None


@pytest.mark.parametrize(
    "server_first",
    [
        "",
        SERVER_FIRST.replace("i=4096", "i=4095"),
        SERVER_FIRST.replace("i=4096", "i=999999"),
        SERVER_FIRST.replace(CLIENT_NONCE, "x"),
        SERVER_FIRST.replace(SERVER_NONCE, ""),
        SERVER_FIRST.replace("s=W22ZaJ0SNY7soEsUEjb6gQ==", "s=A"),
    ],
)
def test_client_rejects_first_message_of_the_server(server_first: str) -> None:
    client = login_client(SCRAM_SHA_256, "user", "pencil", CLIENT_NONCE)
    client.next(b"")
    with pytest.raises(LoginFailed):
        client.next(server_first.encode())


def test_client_rejects_server_that_does_not_know_the_password() -> None:
    client = login_client(SCRAM_SHA_256, "user", "pencil", CLIENT_NONCE)
    client.next(b"")
    client.next(SERVER_FIRST.encode())
    with pytest.raises(LoginFailed):
        client.next(b"v=" + SERVER_FINAL[3:].encode())
