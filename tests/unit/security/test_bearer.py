"""OAUTHBEARER: valid tokens, and every way to forge one."""

import base64
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import ErrorCode
from headrace.model.sasl import OAUTHBEARER
from headrace.security.bearer import (
    FAILURE,
    FAILURE_RESPONSE,
    BearerFailed,
    Claims,
    InvalidKeys,
    Keys,
    Rules,
    UnknownKey,
    bearer_token,
    read_keys,
    verify,
)
from headrace.security.sasl_machine import CheckBearer, Done, Failed, Reply, SaslMachine
from headrace.security.session import Session
from headrace.security.unknown_users import UnknownUsers
from headrace.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.codec import Message, decode_response, encode_request

NOW = 1_800_000_000.0
RULES = Rules("https://issuer.example", ("headrace", "other"))
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
FOREIGN = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: Any) -> bytes:
    public: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return public


def jwk(key: Any, algorithm: str, **fields: str) -> dict[str, Any]:
    text = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key())
    return {**json.loads(text), **fields}


KEYS: Keys = read_keys(
    json.dumps(
        {
            "keys": [
                jwk(RSA, "RS256", kid="rsa"),
                jwk(RSA, "RS256", kid="only-ps", alg="PS256"),
                jwk(EC, "ES256", kid="ec"),
                jwk(ED, "EdDSA", kid="ed", use="sig"),
                jwk(RSA, "RS256", kid="encryption", use="enc"),
                {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"},
                {"kty": "RSA", "kid": "broken"},
            ]
        }
    ).encode()
)


def claims(**changes: Any) -> dict[str, Any]:
    usual = {
        "iss": RULES.issuer,
        "aud": "headrace",
        "sub": "alice",
        "iat": int(NOW) - 10,
        "exp": int(NOW) + 300,
    }
    return {name: value for name, value in (usual | changes).items() if value is not None}


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "rsa", **changes: Any) -> str:
    headers = {} if kid is None else {"kid": kid}
    payload = json.dumps(claims(**changes)).encode()
    return jwt.PyJWS().encode(payload, key, algorithm, headers)


def test_only_keys_for_signatures_are_read() -> None:
    assert set(KEYS) == {"rsa", "only-ps", "ec", "ed"}


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [
        *((RSA, f"{kind}{size}", "rsa") for kind in ("RS", "PS") for size in (256, 384, 512)),
        (RSA, "PS256", "only-ps"),
        (EC, "ES256", "ec"),
        (ED, "EdDSA", "ed"),
    ],
)
def test_valid_token_names_its_user(key: Any, algorithm: str, kid: str) -> None:
    assert verify(token(key, algorithm, kid), KEYS, RULES, NOW) == Claims("alice", NOW + 300)


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (EC, "ES256"), (ED, "EdDSA")])
def test_key_of_a_pem_file_verifies_tokens_with_any_kid(key: Any, algorithm: str) -> None:
    keys = read_keys(pem(key))
    for kid in (None, "anything"):
        assert verify(token(key, algorithm, kid), keys, RULES, NOW).user == "alice"


def forged(header: dict[str, Any], payload: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(payload).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def test_tokens_of_other_keys_and_algorithms_are_rejected() -> None:
    secret = pem(RSA)
    signed = forged({"alg": "HS256", "kid": "rsa"}, claims())[:-1]
    signature = hmac.digest(secret, signed.encode(), "sha256")
    with_public_key = signed + "." + base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    for wrong in (
        token(FOREIGN),
        forged({"alg": "none", "kid": "rsa"}, claims()),
        forged({"alg": "None", "kid": "rsa"}, claims()),
        forged({"alg": "RS256", "kid": "rsa"}, claims()),
        forged({"kid": "rsa"}, claims()),
        with_public_key,
        token(RSA, "RS256", "only-ps"),
        token(EC, "ES256", "rsa"),
        token(RSA, "RS256", "ec"),
        token()[:-4] + "AAAA",
        jwt.encode(claims(), RSA, "RS256", {"kid": "rsa", "crit": ["exp"]}),
        jwt.encode(claims(), FOREIGN, "RS256", {"kid": "rsa", "jwk": jwk(FOREIGN, "RS256")}),
    ):
        with pytest.raises(BearerFailed):
            verify(wrong, KEYS, RULES, NOW)


@pytest.mark.parametrize(
    "kid",
    [
        "secret",
        "encryption",
        "",
        "../../etc/passwd",
        "https://evil.example",
        "file:///x",
        None,
    ],
)
def test_kid_selects_a_known_key_and_nothing_else(kid: str | None) -> None:
    with pytest.raises(UnknownKey):
        verify(token(kid=kid), KEYS, RULES, NOW)


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://evil.example"},
        {"iss": None},
        {"iss": ["https://issuer.example"]},
        {"aud": "somewhere"},
        {"aud": []},
        {"aud": None},
        {"exp": int(NOW) - 31},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": True},
        {"iat": int(NOW) + 31},
        {"iat": None},
        {"iat": int(NOW) + 20, "exp": int(NOW) + 10},
        {"nbf": int(NOW) + 31},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "__headrace"},
        {"sub": "alice\nUser:admin"},
        {"sub": "x" * 300},
    ],
)
def test_token_with_wrong_claims_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(BearerFailed) as failure:
        verify(token(**changes), KEYS, RULES, NOW)
    assert "evil" not in str(failure.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": int(NOW) - 29, "iat": int(NOW) - 90},
        {"iat": int(NOW) + 29},
        {"aud": ["x", "other"]},
        {"nbf": int(NOW)},
    ],
)
def test_clocks_can_differ_and_a_token_can_have_more_audiences(changes: dict[str, Any]) -> None:
    assert verify(token(**changes), KEYS, RULES, NOW).user == "alice"


def test_name_can_be_in_another_claim() -> None:
    rules = RULES._replace(subject_claim="email")
    assert verify(token(email="a@b.c"), KEYS, rules, NOW).user == "a@b.c"


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"keys": []}', b'{"keys": 1}', b'{"keys": [1]}', b"-----BEGIN X"]
)
def test_document_without_keys_is_rejected(data: bytes) -> None:
    with pytest.raises(InvalidKeys):
        read_keys(data)


@given(st.binary(max_size=200))
def test_random_messages_and_tokens_are_rejected(data: bytes) -> None:
    with pytest.raises(BearerFailed):
        bearer_token(data)
    with pytest.raises(BearerFailed):
        verify(data.decode("latin-1"), KEYS, RULES, NOW)


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=bearer a.b.c\x01\x01",
        b"n,,\x01host=x\x01auth=Bearer a.b.c\x01port=1\x01\x01",
    ],
)
def test_token_is_found_in_the_message(message: bytes) -> None:
    assert bearer_token(message) == "a.b.c"


@pytest.mark.parametrize(
    "message",
    [
        b"n,a=bob,\x01auth=Bearer a.b.c\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer a.b.c\x01\x01",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Basic a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer d.e.f\x01\x01",
        b"n,,\x01auth=Bearer a.b\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * 40_000 + b".b.c\x01\x01",
    ],
)
def test_message_of_another_form_is_rejected(message: bytes) -> None:
    with pytest.raises(BearerFailed):
        bearer_token(message)


class Login:
    def __init__(self, lifetime_s: float = 0.0) -> None:
        self.machine = SaslMachine(
            (OAUTHBEARER,),
            lambda *_: None,
            UnknownUsers(b"s" * 32),
            lambda: "n",
            0.0,
            lifetime_of=lambda _: lifetime_s,
        )
        self.send(SASL_HANDSHAKE, 1, {"mechanism": OAUTHBEARER})

    def send(self, key: int, version: int, body: Message) -> Any:
        return self.machine.receive(encode_request(key, version, 7, "test", body), 1.0)

    def log_in(self, text: str) -> Any:
        message = f"n,,\x01auth=Bearer {text}\x01\x01".encode()
        check = self.send(SASL_AUTHENTICATE, 2, {"auth_bytes": message})
        assert check == CheckBearer(text)
        assert text not in repr(check)
        try:
            result: Claims | BearerFailed = verify(text, KEYS, RULES, NOW)
        except BearerFailed as failed:
            result = failed
        return self.machine.bearer_checked(result, 1.0, NOW)


@pytest.mark.parametrize(("limit_s", "lifetime_s"), [(0.0, 300), (60.0, 60), (900.0, 300)])
def test_session_ends_with_the_token_or_earlier(limit_s: float, lifetime_s: int) -> None:
    done = Login(limit_s).log_in(token())
    assert isinstance(done, Done)
    assert done.session == Session("User:alice", "alice", "", OAUTHBEARER, 1.0 + lifetime_s)
    reply = decode_response(SASL_AUTHENTICATE, 2, done.data)[1]
    assert reply["session_lifetime_ms"] == lifetime_s * 1000


def test_failure_is_a_challenge_first_and_an_error_after_the_response() -> None:
    login = Login()
    challenge = login.log_in(token(FOREIGN))
    assert isinstance(challenge, Reply)
    assert decode_response(SASL_AUTHENTICATE, 2, challenge.data)[1]["auth_bytes"] == FAILURE
    failed = login.send(SASL_AUTHENTICATE, 2, {"auth_bytes": FAILURE_RESPONSE})
    assert isinstance(failed, Failed)
    assert failed.is_rejected
    reply = decode_response(SASL_AUTHENTICATE, 2, failed.data or b"")[1]
    assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_valid_token_after_a_failure_is_rejected() -> None:
    login = Login()
    login.log_in(token(FOREIGN))
    message = f"n,,\x01auth=Bearer {token()}\x01\x01".encode()
    assert isinstance(login.send(SASL_AUTHENTICATE, 2, {"auth_bytes": message}), Failed)
