"""What members of type "consumer" say that they read. Pure.

The metadata is the clients' business; a broker looks only at the topics in its oldest part, which
every version begins with, so that offsets of topics that are in use do not expire.
"""

from collections.abc import Iterable

from headrace.wire.cursor import Cursor, MalformedRequest

CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members together; None if one of them cannot be read."""
    topics: set[str] = set()
    try:
        for raw in metadata:
            cursor = Cursor(raw, 2, len(raw))
            for _ in range(int(cursor.count(False, 2))):
                topics.add((cursor.string(False) or b"").decode())
    except (MalformedRequest, UnicodeDecodeError):
        return None
    return frozenset(topics)
