"""The principal and the login of a connection."""

from typing import NamedTuple

from headrace.model.sasl import ANONYMOUS


class Session(NamedTuple):
    principal: str
    user: str = ""
    credential: str = ""
    """The name of the stored credential that verified the login: SCRAM-SHA-256 or SCRAM-SHA-512.

    If the credential is deleted or replaced, the connection is closed.
    """
    mechanism: str = ""
    """The SASL mechanism of the login; empty if the client has not logged in."""
    expires_at: float = 0.0
    """The monotonic time by which the client must log in again; 0: never."""
    is_token: bool = False
    """Whether the client logged in with a delegation token; `credential` is then its id."""


ANONYMOUS_SESSION = Session(ANONYMOUS)
