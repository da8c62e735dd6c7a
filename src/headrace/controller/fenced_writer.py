"""Writes to the store as the controller; checks the controller epoch and the versions of nodes.

Updates the known versions of nodes, which it shares with `LiveImage`, but not the image. Converts
errors of the store to errors for clients. `ControllerRole` has the fence.

1. The store applies the writes of one session in order. So each write can replace the complete list
   of changes, including those of earlier writes in flight. The row of a rejected write stays in the
   list: other brokers then read an unchanged node again.
"""

from collections.abc import Sequence

from headrace.cluster.controller_role import ControllerRole
from headrace.coordination import layout
from headrace.coordination.layout import ChangeRow
from headrace.coordination.port import (
    REQUEST_BYTES_MAX,
    Check,
    Create,
    Delete,
    MultiFailed,
    Op,
    Set,
    Stat,
    Store,
    StoreFull,
    StoreUnavailable,
    TooLarge,
    UnknownOutcome,
)
from headrace.model.errors import ApiError, ErrorCode


class FencedWriter:
    def __init__(self, store: Store, role: ControllerRole, versions: dict[str, int]) -> None:
        self.role = role
        self._store = store
        self._versions = versions

    async def commit(
        self,
        ops: Sequence[Op],
        rows: Sequence[ChangeRow] = (),
        too_large: ErrorCode = ErrorCode.INVALID_REQUEST,
    ) -> bool:
        """Write all of `ops`, and add `rows` to the list of changes.

        Returns False if a version did not match, or the outcome is unknown. The caller then reads
        the nodes and decides again. Raises ApiError if nothing was written:

        - NOT_CONTROLLER: clients look for the controller and retry. It can be another broker, or
          this one when it is connected to the store again.
        - KAFKA_STORAGE_ERROR: the disk of the store is full. No other broker could write either, so
          clients get this error immediately.
        - `too_large`: the store does not accept a request of this size.
        """
        if not self.role.is_controller:
            raise not_controller()
        request: list[Op] = [Check(layout.CONTROLLER_EPOCH, self.role.fence), *ops]
        if rows:
            changes = layout.encode_changes(self.role.add_changes(rows))
            request.append(Set(layout.CHANGES, changes))
        try:
            results = await self._store.multi(request)
        except UnknownOutcome:
            return False
        except MultiFailed as failed:
            if failed.index == 0:
                self.role.drop()
                raise not_controller() from None
            return False
        except StoreFull:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "The broker's store cannot be written: its disk is full. Free some "
                "space, then try again.",
            ) from None
        except StoreUnavailable:
            raise not_controller() from None
        except TooLarge:
            raise ApiError(
                too_large, "The change is too large for one write to the store."
            ) from None
        for op, result in zip(ops, results[1:], strict=False):
            self._note_version(op, result)
        return True

    async def confirm(self) -> None:
        """Raise NOT_CONTROLLER unless the store confirms that this is still the controller."""
        if not await self.commit([]):
            raise not_controller()

    def _note_version(self, op: Op, result: Stat | None) -> None:
        if isinstance(op, Create):
            self._versions[op.path] = 0
        elif isinstance(op, Delete):
            self._versions.pop(op.path, None)
        elif result is not None:
            self._versions[op.path] = result.version

    def set(self, path: str, data: bytes) -> Set:
        """An operation that changes a node which exists."""
        return Set(path, data, self._versions[path])

    def put(self, path: str, data: bytes) -> Set | Create:
        """An operation that changes a node, or creates it if it does not exist."""
        return self.set(path, data) if path in self._versions else Create(path, data)

    def knows(self, path: str) -> bool:
        """Whether the node existed when it was last read or written."""
        return path in self._versions

    def delete(self, path: str) -> Delete:
        return Delete(path, self._versions[path])


def not_controller() -> ApiError:
    return ApiError(
        ErrorCode.NOT_CONTROLLER, "This broker is not the controller, or its store is unavailable."
    )


def in_requests(ops: Sequence[Set]) -> list[list[Set]]:
    """Split independent operations into requests that the store accepts."""
    requests: list[list[Set]] = []
    free_bytes = 0
    for op in ops:
        size = len(op.path) + len(op.data) + 32
        if size > free_bytes:
            requests.append([])
            free_bytes = REQUEST_BYTES_MAX // 2
        requests[-1].append(op)
        free_bytes -= size
    return requests
