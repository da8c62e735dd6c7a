"""The states of a classic group, and all transitions between them. Pure data.

Only `next_state` determines the next state of a group. docs/ARCHITECTURE.md contains this table as
a diagram.
"""

from enum import StrEnum


class State(StrEnum):
    """Kafka's names, as tools print them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Event(StrEnum):
    JOIN = "a member joins"
    """A new member, a member with changed metadata, a rejoining leader, or a new member id of an
    instance."""
    LEAVE = "a member leaves"
    """By LeaveGroup, or because a limit was exceeded."""
    EXPIRE = "a session or the sync deadline expires"
    LOAD = "a loaded group exceeds group.max.size"
    CONVERT = "converted from the consumer protocol"
    APPEND_FAILED = "the assignment cannot be stored"
    ALL_JOINED = "all members have joined, or the join deadline expires"
    ALL_LEFT = "no members are left"
    """Without a record: the group is not stored, or the append of the record failed."""
    APPLY_MEMBERS = "a generation with members is applied"
    APPLY_EMPTY = "an empty generation is applied"


TRANSITIONS = {
    (State.EMPTY, Event.JOIN): State.PREPARING,
    (State.EMPTY, Event.APPLY_MEMBERS): State.STABLE,
    (State.EMPTY, Event.APPLY_EMPTY): State.EMPTY,
    (State.PREPARING, Event.ALL_JOINED): State.COMPLETING,
    (State.PREPARING, Event.APPLY_EMPTY): State.EMPTY,
    (State.PREPARING, Event.ALL_LEFT): State.EMPTY,
    (State.COMPLETING, Event.APPLY_MEMBERS): State.STABLE,
    (State.COMPLETING, Event.APPEND_FAILED): State.PREPARING,
    (State.COMPLETING, Event.JOIN): State.PREPARING,
    (State.COMPLETING, Event.LEAVE): State.PREPARING,
    (State.COMPLETING, Event.EXPIRE): State.PREPARING,
    (State.STABLE, Event.JOIN): State.PREPARING,
    (State.STABLE, Event.LEAVE): State.PREPARING,
    (State.STABLE, Event.EXPIRE): State.PREPARING,
    (State.STABLE, Event.LOAD): State.PREPARING,
    (State.STABLE, Event.CONVERT): State.PREPARING,
    (State.STABLE, Event.APPLY_MEMBERS): State.STABLE,
    (State.STABLE, Event.APPLY_EMPTY): State.EMPTY,
}


def next_state(state: State, event: Event) -> State:
    after = TRANSITIONS.get((state, event))
    assert after is not None, f"a group in state {state} cannot handle: {event}"
    return after
