"""Delegation tokens (KIP-48): short-lived credentials that act as their owner."""

from typing import NamedTuple


class Token(NamedTuple):
    token_id: str
    owner: str
    """The principal that the token acts as."""
    requester: str
    """The principal that created the token."""
    renewers: tuple[str, ...]
    """Principals that can renew and expire the token, in addition to the owner."""
    issued_ms: int
    expires_ms: int
    max_ms: int
    """A token cannot be renewed beyond this time."""

    def is_expired(self, now_ms: int) -> bool:
        return min(self.expires_ms, self.max_ms) <= now_ms

    def is_managed_by(self, principal: str) -> bool:
        """Whether a principal can renew and expire the token."""
        return principal == self.owner or principal in self.renewers
