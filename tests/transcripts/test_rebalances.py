"""Rebalances of classic groups as transcripts: the group's state machine, with time by command.

Commands: `join a` (`static` makes it a static member of that name), `sync a` (the leader assigns
each member its own name), `heartbeat a`, `leave a`, `wait 5s`, `fail-over` (another coordinator
loads the log), `break` and `mend` (appends fail, or succeed again). The output has the replies, and
the state of the group if it changed.
"""

from pathlib import Path

import pytest

from headrace.group.messages import JoinReply, SyncReply
from headrace.model.errors import ErrorCode
from tests.transcripts import transcript
from tests.unit.group.classic_scenario import Table


class Director:
    """Executes the commands of a transcript in one group."""

    def __init__(self) -> None:
        self._table = Table()
        self._names: dict[int, str] = {}
        """The member that waits for each ticket."""
        self._generations: dict[str, int] = {}
        self._state = self._table.state

    def play(self, command: str) -> list[str]:
        verb, *words = command.split()
        output = self._do(verb, words) + self._replies()
        if self._table.state != self._state:
            self._state = self._table.state
            output.append(f"group: {self._state}")
        return output

    def _do(self, verb: str, words: list[str]) -> list[str]:
        table = self._table
        if verb == "wait":
            table.wait(int(float(words[0].removesuffix("s")) * 1000))
        elif verb == "fail-over":
            self._table = table.restarted()
            self._names = {}
        elif verb in ("break", "mend"):
            table.broken = ErrorCode.NOT_ENOUGH_REPLICAS if verb == "break" else None
        elif verb == "join":
            self._join(words[0], words[0] if "static" in words else None)
        elif verb == "sync":
            given = {name: name.encode() for name in table.ids}
            self._names[table.sync(words[0], self._generations[words[0]], **given)] = words[0]
        elif verb == "heartbeat":
            error = table.heartbeat(words[0], self._generations[words[0]])
            return [f"{words[0]}: {error.name}"]
        else:
            assert verb == "leave", f"unknown command: {verb}"
            return [f"{words[0]}: {error.name}" for error in table.leave(words[0])]
        return []

    def _join(self, name: str, instance_id: str | None) -> None:
        if instance_id is None:
            ticket = self._table.join(name)
        else:
            ticket = self._table.ask_to_join(name, instance_id=instance_id)
        self._names[ticket] = name

    def _replies(self) -> list[str]:
        lines = []
        for ticket in [each for each in self._names if each in self._table.replies]:
            name, reply = self._names.pop(ticket), self._table.replies[ticket]
            if reply.error is not ErrorCode.NONE:
                lines.append(f"{name}: {reply.error.name}")
            elif isinstance(reply, JoinReply):
                self._table.ids[name] = reply.member_id
                self._generations[name] = reply.generation
                role = "leader" if reply.leader == reply.member_id else "member"
                lines.append(f"{name}: joined as {role}, generation {reply.generation}")
            else:
                assert isinstance(reply, SyncReply)
                lines.append(f"{name}: assigned {reply.assignment.decode() or 'nothing'}")
        return lines


@pytest.mark.parametrize("path", transcript.files("rebalances"), ids=lambda path: path.stem)
def test_rebalances(path: Path) -> None:
    transcript.check(path, Director().play)
