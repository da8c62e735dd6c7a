"""Rejects user names that can be confused with another name. Pure.

SASLprep (RFC 4013) maps characters that look the same, or mean the same, to one form, and prohibits
control characters. RFC 5802 requires it for SCRAM. Kafka does not apply it, so it accepts "admin"
in full-width letters as another user. Headrace accepts only names that SASLprep does not change. It
also rejects spaces at the start and the end, which SASLprep keeps, and names that have a meaning in
ACLs.
"""

import stringprep
from unicodedata import ucd_3_2_0

_MEANINGS = {"*": "all users", "ANONYMOUS": "clients that have not logged in"}
_PROHIBITED = (
    stringprep.in_table_a1,  # Not assigned in Unicode 3.2, on which RFC 4013 is based.
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(text: str) -> str | None:
    """The SASLprep form of a stored string; None if it has prohibited characters."""
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each
        for each in text
        if not stringprep.in_table_b1(each)
    )
    prepared = ucd_3_2_0.normalize("NFKC", mapped)
    if any(is_prohibited(each) for each in prepared for is_prohibited in _PROHIBITED):
        return None
    return prepared if _is_one_direction(prepared) else None


def _is_one_direction(text: str) -> bool:
    """Whether text from right to left is not mixed with other text (RFC 3454, section 6)."""
    if not any(map(stringprep.in_table_d1, text)):
        return True
    has_left_to_right = any(map(stringprep.in_table_d2, text))
    ends = stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
    return ends and not has_left_to_right


def name_error(name: str) -> str:
    """Why a user cannot have this name; "" if it can."""
    if name.isascii() and name.isprintable():
        prepared: str | None = name
    else:
        prepared = saslprep(name)
    if prepared is None:
        return "The user name has characters that SASLprep (RFC 4013) prohibits."
    if prepared != name:
        return f"The user name is not in its SASLprep form (RFC 4013). Use {prepared!r}."
    if name != name.strip():
        return "The user name must not start or end with a space."
    if name in _MEANINGS:
        return f"The user name {name} stands for {_MEANINGS[name]}. Choose another one."
    return ""
