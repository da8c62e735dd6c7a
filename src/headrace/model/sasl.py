"""Names of authentication: SASL mechanisms and principals."""

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)
"""The mechanisms with a password."""
LISTENER_MECHANISMS = (*MECHANISMS, OAUTHBEARER)
"""The mechanisms that a listener can offer."""

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a connection without authentication."""


def principal_of(user: str) -> str:
    return f"User:{user}"
