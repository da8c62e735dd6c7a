"""Compares a PLAIN password with a stored credential. Pure, but takes milliseconds.

A failed check takes the same time for all users, also unknown ones. Otherwise, its time would
reveal which users exist. PLAIN checks the first valid credential of a user, in the order of SCRAMS.
For each mechanism, a failed check computes as many iterations as the most expensive of these
credentials has.
"""

from collections.abc import Mapping

from headrace.security.scram import (
    ITERATIONS_MIN,
    SCRAMS,
    Credential,
    Scram,
    credential_from_text,
    salted_password,
    verifies,
)

Work = Mapping[str, int]
"""The iterations of a failed check, by mechanism."""


def failing_work(users: Mapping[str, Mapping[str, str]]) -> Work:
    """The work of a failed check, for the stored credentials of all users."""
    work = {next(iter(SCRAMS)): ITERATIONS_MIN}
    for config in users.values():
        for name in SCRAMS:
            credential = credential_from_text(config[name]) if name in config else None
            if credential is not None:
                work[name] = max(work.get(name, 0), credential.iterations)
                break
    return work


def verifies_plain(scram: Scram, credential: Credential, password: str, work: Work) -> bool:
    """Whether a password belongs to a credential. If not, also computes the rest of `work`."""
    if verifies(scram, credential, password):
        return True
    for name, iterations in work.items():
        left = iterations - (credential.iterations if name == scram.name else 0)
        if left > 0:
            salted_password(SCRAMS[name], password, credential.salt, left)
    return False
