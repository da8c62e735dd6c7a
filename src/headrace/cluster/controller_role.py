"""Whether this broker is the controller: elected, with a fence for its writes.

Owns that state, the fence and the list of latest changes. Registration sets it after an election,
the fenced writer clears it when the store rejects the fence, and other modules only read
`is_controller`.

1. A broker is the controller only after it has read everything under its own epoch (B8).
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
        """Whether this broker is the controller since the election with this fence."""
        return self.is_controller and self._fence == fence

    def take(self, fence: int, epoch: int, changes: ChangeLog) -> None:
        """This broker is the controller from now on."""
        self.is_controller = True
        self.epoch = epoch
        self._fence = fence
        self._changes = changes

    def drop(self) -> None:
        """This broker is not the controller."""
        self.is_controller = False

    def add_changes(self, rows: Sequence[ChangeRow]) -> ChangeLog:
        """The list of latest changes, with these rows of the next write."""
        self._changes = self._changes.with_rows(rows)
        return self._changes
