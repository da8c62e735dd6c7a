"""The state of a run and of each flow, from Spark's events. Pure.

1. A failed flow becomes completed only if it has started again.
2. Row counts come from Spark or from files. An unknown count is None.
"""

import re
from dataclasses import dataclass, field

from headrace.pipelines.graph import Graph

QUEUED, RUNNING, COMPLETED = "queued", "running", "completed"
FAILED, SKIPPED, STOPPED = "failed", "skipped", "stopped"
BROKEN = "broken"
"""The definition of the flow is invalid, so it did not run."""
UNCHECKED = "unchecked"
"""A dry run cannot check the flow, because it reads tables that the first run creates."""
ENDED = (COMPLETED, FAILED, SKIPPED, STOPPED, BROKEN, UNCHECKED)
_STATE = re.compile(r"Flow '?(?P<flow>[^']+?)'? (?:is|has) (?P<state>[A-Z_]+)")
_SKIPPED = re.compile(r"Flow '?(?P<flow>[^']+?)'? SKIPPED")
_UNRESOLVED = re.compile(r"Failed to resolve flow: '(?P<flow>[^']+)'")
# Spark's names of states, and the states that a user sees.
_STATES = {
    "QUEUED": QUEUED,
    "PLANNING": RUNNING,
    "STARTING": RUNNING,
    "RUNNING": RUNNING,
    "COMPLETED": COMPLETED,
    "FAILED": FAILED,
    "SKIPPED": SKIPPED,
    "EXCLUDED": SKIPPED,
    "STOPPED": STOPPED,
}


@dataclass
class FlowRun:
    name: str
    state: str = QUEUED
    rows_read: int | None = None
    rows_written: int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    starts: int = 0
    error: str | None = None
    """The complete text from Spark."""
    is_confirmed: bool = False
    """The run has ended and the rows of the flow are in its target."""

    @property
    def shown_state(self) -> str:
        """The state for display: a flow is completed once that is confirmed."""
        return RUNNING if self.state == COMPLETED and not self.is_confirmed else self.state

    def seconds(self, now_s: float) -> float | None:
        if self.started_s is None:
            return None
        return max((now_s if self.ended_s is None else self.ended_s) - self.started_s, 0.0)

    def rows_per_s(self, now_s: float) -> float | None:
        seconds = self.seconds(now_s)
        if self.rows_read is None or not seconds:
            return None
        return self.rows_read / seconds


@dataclass
class Run:
    prefix: str
    """The prefix of dataset names in Spark: the catalog and the database."""
    flows: dict[str, FlowRun] = field(default_factory=dict)
    unresolved: dict[str, str] = field(default_factory=dict)
    """The flows whose definitions Spark cannot resolve, with Spark's error."""
    ended_queries: set[str] = field(default_factory=set)

    def short(self, name: str) -> str:
        return name.replace("`", "").removeprefix(self.prefix)

    def named_in(self, error: str, graph: Graph) -> list[str]:
        """The flows of the first dataset that an error names; none if one of them has started."""
        found = re.search(rf"{re.escape(self.prefix)}(\w+)", error.replace("`", ""))
        name = found[1] if found else None
        flows = [flow.name for flow in graph.flows.values() if name in (flow.name, flow.target)]
        begun = [self.flows[each] for each in flows if each in self.flows]
        return [] if any(flow.started_s is not None for flow in begun) else flows

    def apply_event(self, message: str, now_s: float) -> FlowRun | None:
        """Apply the text of an event; returns the flow if its state has changed."""
        head, _, rest = message.partition("\n")
        error = rest.removeprefix("Error: ")
        if found := _UNRESOLVED.match(head):
            self.unresolved[self.short(found["flow"])] = error
            return None
        if found := _SKIPPED.match(head):
            return self._enter(self.short(found["flow"]), SKIPPED, None, now_s)
        if (found := _STATE.match(head)) and found["state"] in _STATES:
            return self._enter(
                self.short(found["flow"]), _STATES[found["state"]], error or None, now_s
            )
        return None

    def _enter(self, name: str, state: str, error: str | None, now_s: float) -> FlowRun | None:
        flow = self.flows.setdefault(name, FlowRun(name, state=""))
        if flow.state == state or (flow.state == FAILED and state == COMPLETED):
            return None
        flow.state = state
        if state == RUNNING:
            flow.starts += 1
            flow.started_s = now_s if flow.started_s is None else flow.started_s
            flow.ended_s = flow.error = None
        elif state in ENDED:
            flow.ended_s = now_s
            flow.error = error
        return flow

    def confirm(self) -> list[FlowRun]:
        """Confirm the flows that have completed, at the end of a run; returns them."""
        done = [flow for flow in self.flows.values() if flow.state == COMPLETED]
        for flow in done:
            flow.is_confirmed = True
        return done

    def fail(self, name: str, error: str) -> None:
        """Mark a flow as failed that Spark has completed."""
        flow = self.flows.setdefault(name, FlowRun(name))
        flow.state, flow.error = FAILED, flow.error or error

    def progressed(self, name: str, rows_read: int, rows_written: int | None) -> FlowRun | None:
        """Count the rows of a finished micro-batch; None for a sink that does not report them."""
        flow = self.flows.get(self.short(name))
        if flow is None:
            return None
        flow.rows_read = (flow.rows_read or 0) + rows_read
        if rows_written is not None:
            flow.rows_written = (flow.rows_written or 0) + rows_written
        return flow
