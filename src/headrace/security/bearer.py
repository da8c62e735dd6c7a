"""OAUTHBEARER (RFC 7628): the client's message, and the verification of a JWT. Pure.

Keys, rules and the time are arguments. PyJWT and cryptography are imported with the first key.

1. The key, and not the token, decides which algorithms are allowed. Symmetric algorithms and `none`
   are never allowed.
2. A token must have exp, iat, the subject, and the expected issuer and audience.
3. The `kid` of a token selects one of the broker's keys. Nothing in a token is used as a path or
   URL.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.security.user_names import name_error
from headrace.security.users import NAME_BYTES_MAX, RESERVED_PREFIX

TOKEN_BYTES_MAX = 32 * 1024
KEYS_BYTES_MAX = 1024 * 1024
FAILURE = b'{"status":"invalid_token"}'
"""The challenge after a token that is not valid; the client responds with \\x01."""
FAILURE_RESPONSE = b"\x01"
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_FIRST = re.compile(
    rb"n,(?:a=(?P<authzid>[^,]+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)+)\x01"
)
_TOKEN = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


class BearerFailed(Exception):
    """The token is rejected. The message is for the broker's log, and has no part of the token."""


class UnknownKey(BearerFailed):
    """The broker has no key with the `kid` of the token. It can be a new key of the issuer."""


class InvalidKeys(Exception):
    """A document contains no usable key. The message is the reason."""


class Rules(NamedTuple):
    issuer: str
    audience: tuple[str, ...]
    subject_claim: str = "sub"
    skew_seconds: float = 30.0


class Claims(NamedTuple):
    user: str
    expires_at: float
    """Seconds since 1970."""


class Key(NamedTuple):
    key: Any
    algorithms: tuple[str, ...]


Keys = Mapping[str | None, Key]
"""Keys by `kid`. The key of a PEM file has the `kid` None, and verifies all tokens."""


def bearer_token(message: bytes) -> str:
    """The token in the client's first message."""
    match = _FIRST.fullmatch(message) if len(message) <= TOKEN_BYTES_MAX else None
    if match is None:
        raise BearerFailed("the client's message is not valid")
    pairs = [pair.split(b"=", 1) for pair in match["pairs"].split(b"\x01") if pair]
    values = [value for name, value in pairs if name == b"auth"]
    scheme, _, token = (values[0] if len(values) == 1 else b"").partition(b" ")
    if scheme.lower() != b"bearer" or not _TOKEN.fullmatch(token):
        raise BearerFailed("the client's message contains no token")
    if match["authzid"] is not None:
        raise BearerFailed("the message contains an authorization id")
    return token.decode()


def read_keys(data: bytes) -> Keys:
    """The keys of a JWKS document, or the public key of a PEM file. Raises InvalidKeys."""
    if len(data) > KEYS_BYTES_MAX:
        raise InvalidKeys(f"it has more than {KEYS_BYTES_MAX} bytes")
    if data.lstrip().startswith(b"-----BEGIN"):
        return {None: _pem_key(data)}
    try:
        rows = json.loads(data)["keys"]
        keys = {row.get("kid"): key for row in rows if (key := _jwk(row)) is not None}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidKeys("it is neither a JWKS document nor a PEM file") from None
    if not keys:
        raise InvalidKeys("it contains no RSA, EC or Ed25519 key for signatures")
    return keys


def _jwk(row: Mapping[str, Any]) -> Key | None:
    """One key of a JWKS document; None if it cannot verify signatures, or is not supported."""
    import jwt

    algorithms = _algorithms_of(row)
    if not algorithms or row.get("use", "sig") != "sig":
        return None
    public = {name: value for name, value in row.items() if name not in ("alg", "d")}
    try:
        return Key(jwt.PyJWK(public, algorithms[0]).key, algorithms)
    except jwt.PyJWTError:
        return None


def _algorithms_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    kind, curve = row.get("kty"), str(row.get("crv"))
    allowed: tuple[str, ...] = ()
    if kind == "RSA":
        allowed = _RSA
    elif kind == "EC" and curve in _CURVES:
        allowed = (_CURVES[curve],)
    elif kind == "OKP" and curve == "Ed25519":
        allowed = ("EdDSA",)
    named = row.get("alg")
    return allowed if named is None else tuple(each for each in allowed if each == named)


def _pem_key(data: bytes) -> Key:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(data)
    except ValueError:
        raise InvalidKeys("its PEM does not contain a public key") from None
    if isinstance(key, RSAPublicKey):
        return Key(key, _RSA)
    if isinstance(key, Ed25519PublicKey):
        return Key(key, ("EdDSA",))
    curves = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
    if isinstance(key, EllipticCurvePublicKey) and key.curve.name in curves:
        return Key(key, (curves[key.curve.name],))
    raise InvalidKeys("its public key is not an RSA, EC or Ed25519 key")


def verify(token: str, keys: Keys, rules: Rules, now: float) -> Claims:
    """The claims of a valid token. Raises BearerFailed. `now` is in seconds since 1970."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
        if "crit" in header:
            raise BearerFailed("the token has critical extensions")
        key = keys.get(None) or keys.get(header.get("kid"))
        if key is None:
            raise UnknownKey("the broker has no key with the kid of the token")
        claims = jwt.decode(
            token,
            key.key,
            algorithms=list(key.algorithms),
            # `_checked_times` checks the times, because PyJWT would read the system's clock.
            options={
                "verify_exp": False,
                "verify_iat": False,
                "verify_nbf": False,
                "verify_aud": True,
                "verify_sub": False,
                "require": ["exp", "iat", "iss", "aud"],
            },
            audience=list(rules.audience),
            issuer=rules.issuer,
        )
    except jwt.PyJWTError as error:
        raise BearerFailed(f"the token is not valid ({type(error).__name__})") from None
    return Claims(_subject(claims, rules), _checked_times(claims, rules, now))


def _subject(claims: Mapping[str, Any], rules: Rules) -> str:
    user = claims.get(rules.subject_claim)
    if not isinstance(user, str) or not user or name_error(user):
        raise BearerFailed(f"the claim {rules.subject_claim} is not a name")
    if len(user.encode(errors="replace")) > NAME_BYTES_MAX or user.startswith(RESERVED_PREFIX):
        raise BearerFailed(f"the claim {rules.subject_claim} is too long or reserved")
    return user


def _checked_times(claims: Mapping[str, Any], rules: Rules, now: float) -> float:
    """Check all times. Returns the time at which the token expires."""
    times = {name: claims.get(name) for name in ("exp", "iat", "nbf") if name in claims}
    for name, value in times.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise BearerFailed(f"the claim {name} is not a time")
    if float(claims["exp"]) <= now - rules.skew_seconds:
        raise BearerFailed("the token has expired")
    if max(float(times.get("nbf") or 0), float(claims["iat"])) > now + rules.skew_seconds:
        raise BearerFailed("the token is not valid yet")
    if claims["iat"] > claims["exp"]:
        raise BearerFailed("the token expires before it was issued")
    return float(claims["exp"])
