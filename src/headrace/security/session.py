"""The principal and the login of a connection."""

from typing import NamedTuple

from headrace.model.sasl import ANONYMOUS


class Session(NamedTuple):
    principal: str
    user: str = ""
    credential: str = ""
    """The stored credential that verified the login, SCRAM-SHA-256 or SCRAM-SHA-512. If it is
    deleted or replaced, the connection is closed."""
    mechanism: str = ""
    """The SASL mechanism of the login; empty without one."""
    expires_at: float = 0.0
    """The time of the monotonic clock at which the client must have logged in again; 0: never."""
    is_token: bool = False
    """Whether the client logged in with a delegation token; `credential` is then its id."""


ANONYMOUS_SESSION = Session(ANONYMOUS)
