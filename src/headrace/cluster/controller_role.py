"""The role of this broker: whether it is the controller, and the fence of its writes.

Owns the role, the fence and the list of the latest changes. `Registration` sets the role after an
election. The role is cleared when this broker resigns or stops, when it loses its registration or
the election, and when the store rejects the fence.

1. A broker is the controller only after it has read everything under its own controller epoch (B8).
"""

from collections.abc import Sequence

from headrace.coordination.layout import ChangeLog, ChangeRow


class ControllerRole:
    def __init__(self) -> None:
        self.is_controller = False
        self.epoch = 0
        """The controller epoch of this broker's last election."""
        self._fence = -1
        self._changes = ChangeLog(0, ())

    @property
    def fence(self) -> int:
        """The version of /controller_epoch that every write of this controller checks."""
        assert self.is_controller
        return self._fence

    def is_held_under(self, fence: int) -> bool:
        """Whether this broker is the controller, and was elected with this fence."""
        return self.is_controller and self._fence == fence

    def take(self, fence: int, epoch: int, changes: ChangeLog) -> None:
        """Make this broker the controller; `changes` is the list of changes in the store."""
        self.is_controller = True
        self.epoch = epoch
        self._fence = fence
        self._changes = changes

    def drop(self) -> None:
        """Make this broker a broker that is not the controller."""
        self.is_controller = False

    def add_changes(self, rows: Sequence[ChangeRow]) -> ChangeLog:
        """Add rows to the list of the latest changes, and return it for the next write."""
        self._changes = self._changes.with_rows(rows)
        return self._changes
