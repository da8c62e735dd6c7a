"""What members of a consumer group send each other through the coordinator. Pure.

The broker does not read it. Versions only add fields behind those of the first one, which are the
ones read here.
"""

from headrace.model.topics import TopicPartition
from headrace.wire.cursor import Cursor, MalformedRequest


def read_assignment(raw: bytes) -> tuple[TopicPartition, ...]:
    """The partitions that a member was given; none if these bytes are not an assignment."""
    if not raw:
        return ()
    cursor = Cursor(raw, 0, len(raw))
    partitions: list[TopicPartition] = []
    try:
        cursor.read_i16()
        for _ in range(int(cursor.count(False, 6))):
            topic = (cursor.string(False) or b"").decode()
            partitions += [
                TopicPartition(topic, int(cursor.read_i32()))
                for _ in range(int(cursor.count(False, 4)))
            ]
    except (MalformedRequest, UnicodeDecodeError):
        return ()
    return tuple(partitions)
