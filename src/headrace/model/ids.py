"""Kafka's text form of ids: 22 characters of URL-safe base64, without padding. Pure."""

import base64
import binascii
from uuid import UUID


def id_text(id_: UUID) -> str:
    return base64.urlsafe_b64encode(id_.bytes).rstrip(b"=").decode()


def id_from_text(text: str) -> UUID:
    """Raises ValueError if the text is not an id."""
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except binascii.Error as error:
        raise ValueError(str(error)) from None
