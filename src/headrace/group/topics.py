"""The topics of the cluster, as groups see them.

`version` increases with every change that can affect a group: a topic is created, is deleted or
gets more partitions. Leader changes do not affect groups.
"""

from collections.abc import Iterable
from hashlib import blake2b
from uuid import UUID

from headrace.model.cluster import ClusterImage
from headrace.model.topics import TopicState


class Topics:
    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self.version = 0

    @property
    def count(self) -> int:
        return len(self._image.topics)

    def changed(self) -> None:
        self.version += 1

    def get(self, name: str) -> TopicState | None:
        return self._image.topics.get(name)

    def id_of(self, name: str) -> UUID | None:
        topic = self._image.topics.get(name)
        return None if topic is None else topic.topic_id

    def name_of(self, topic_id: UUID) -> str | None:
        return self._image.names_by_id.get(topic_id)

    def names(self) -> Iterable[str]:
        return self._image.topics

    def hash_of(self, names: Iterable[str]) -> int:
        """A hash of the ids, names and partition counts of these topics. Ignores unknown topics."""
        digest = blake2b(digest_size=8)
        for name in sorted(names):
            topic = self._image.topics.get(name)
            if topic is not None:
                count = len(topic.partitions)
                digest.update(b"%b %d %b\n" % (topic.topic_id.bytes, count, name.encode()))
        return int.from_bytes(digest.digest(), "big", signed=True)
