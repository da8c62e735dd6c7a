"""The arguments and the result of a run: states of flows, errors, lag; also as JSON. Pure."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headrace.pipelines.graph import SOURCE, Graph
from headrace.pipelines.problems import Problem
from headrace.pipelines.run_machine import COMPLETED, FlowRun


@dataclass(frozen=True)
class Request:
    dry: bool = False
    full_refresh: tuple[str, ...] = ()
    full_refresh_all: bool = False


@dataclass
class Outcome:
    pipeline: str
    dry: bool
    started: datetime
    graph: Graph
    flows: dict[str, FlowRun] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    state: str = COMPLETED
    lags: dict[str, int] = field(default_factory=dict)
    """The lag of each flow whose checkpoint and topics are readable, in records."""

    def rows_read(self) -> int:
        """Rows that entered the pipeline. Flows with the same sources are counted once."""
        read: dict[tuple[str, ...], int] = {}
        for flow in self.flows.values():
            sources = tuple(sorted(self._sources(flow.name)))
            if sources and flow.rows_read is not None:
                read[sources] = max(read.get(sources, 0), flow.rows_read)
        return sum(read.values())

    def _sources(self, flow: str) -> list[str]:
        """Topics and other external sources of a flow."""
        own = self.graph.flows[flow].reads if flow in self.graph.flows else ()
        external = [name for name in own if self.graph.nodes[name].kind == SOURCE]
        return self.graph.topics_of(flow) + external

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "dry_run": self.dry,
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 3),
            "state": self.state,
            "flows": [
                {
                    "flow": flow.name,
                    "target": self._target(flow.name),
                    "state": flow.state,
                    "rows_read": flow.rows_read,
                    "rows_written": flow.rows_written,
                    "seconds": _rounded(flow.seconds(flow.ended_s or 0.0)),
                    "rows_per_s": _rounded(flow.rows_per_s(flow.ended_s or 0.0)),
                    "lag": self.lags.get(flow.name),
                }
                for flow in self.flows.values()
            ],
            "errors": [
                {"flow": each.flow, "file": each.file, "line": each.line, "message": each.message}
                for each in self.problems
            ],
            "warnings": self.warnings,
        }

    def _target(self, name: str) -> str | None:
        return self.graph.flows[name].target if name in self.graph.flows else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
