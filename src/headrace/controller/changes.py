"""What changed in the cluster's image, as those are told who act on it. Pure."""

from typing import NamedTuple

from headrace.model.topics import TopicState


class ImageChange(NamedTuple):
    """One step of the image, which already shows it. Deletions come before creations.

    A topic deleted and made again under its name is in both, with two ids.
    """

    deleted: tuple[TopicState, ...] = ()
    created: tuple[TopicState, ...] = ()
    changed: tuple[tuple[TopicState, TopicState], ...] = ()
    """The same topic before and after: more partitions, other leaders or epochs, other settings."""
    broker_configs: tuple[int | None, ...] = ()
    """Brokers whose dynamic settings were set; None for those of all brokers."""


def topic_change(before: TopicState | None, after: TopicState | None) -> ImageChange | None:
    if before == after:
        return None
    if before is None or after is None or before.topic_id != after.topic_id:
        return ImageChange(
            deleted=() if before is None else (before,),
            created=() if after is None else (after,),
        )
    return ImageChange(changed=((before, after),))
