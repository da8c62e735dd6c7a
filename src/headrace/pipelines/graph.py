"""The datasets of a pipeline, and the flows between them. Pure values."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

TOPIC, SOURCE = "topic", "source"
TABLE, VIEW, TEMPORARY_VIEW, SINK = "table", "view", "temporary view", "sink"


@dataclass(frozen=True)
class Node:
    name: str
    kind: str
    detail: str | None = None
    """For a sink, its topic or format."""


@dataclass(frozen=True)
class Flow:
    name: str
    target: str
    reads: tuple[str, ...]
    """Names of nodes."""
    file: str
    line: int


@dataclass
class Graph:
    pipeline: str
    nodes: dict[str, Node] = field(default_factory=dict)
    flows: dict[str, Flow] = field(default_factory=dict)

    def dependents(self, flows: Iterable[str]) -> set[str]:
        """Other flows that read the targets of these flows, directly or through further flows."""
        given = set(flows)
        found = set(given)
        while True:
            targets = {self.flows[name].target for name in found if name in self.flows}
            more = {
                flow.name
                for flow in self.flows.values()
                if flow.name not in found and targets & set(flow.reads)
            }
            if not more:
                return found - given
            found |= more

    def waves(self, eager: Collection[str]) -> dict[str, int]:
        """The number of sequential runs after which each dataset can be computed.

        An eager flow reads datasets of an earlier run. Flows into one dataset run together.
        """
        made = dict.fromkeys((flow.target for flow in self.flows.values()), 0)
        for _ in self.flows:  # No path through the graph is longer.
            for flow in self.flows.values():
                step = 1 if flow.name in eager else 0
                reads = [made[name] + step for name in flow.reads if name in made]
                if flow.target not in flow.reads:
                    made[flow.target] = max([made[flow.target], *reads])
        return made

    def is_streaming(self, flow: str) -> bool:
        """Whether a flow is a streaming query, whose progress Spark reports."""
        target = self.nodes.get(self.flows[flow].target) if flow in self.flows else None
        return target is not None and target.kind in (TABLE, SINK)

    def streams_of(self, name: str) -> list[str]:
        """Streaming flows that read a dataset, themselves or through temporary views."""
        found: list[str] = []
        for flow in self.flows.values():
            if name not in flow.reads:
                continue
            if self.nodes[flow.target].kind == TEMPORARY_VIEW:
                found += self.streams_of(flow.target)
            elif self.is_streaming(flow.name):
                found.append(flow.name)
        return list(dict.fromkeys(found))

    def topics_of(self, flow: str) -> list[str]:
        """Topics that a flow reads, itself or through temporary views."""
        found: list[str] = []
        for name in self.flows[flow].reads if flow in self.flows else ():
            node = self.nodes.get(name)
            if node is None:
                continue
            if node.kind == TOPIC:
                found.append(name)
            elif node.kind == TEMPORARY_VIEW:
                into = [each.name for each in self.flows.values() if each.target == name]
                found += [topic for each in into for topic in self.topics_of(each)]
        return list(dict.fromkeys(found))

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "nodes": [asdict(node) for node in self.nodes.values()],
            "flows": [asdict(flow) for flow in self.flows.values()],
        }


def graph_of(content: Mapping[str, Any]) -> Graph:
    """The graph in the result of `to_json`."""
    nodes = [Node(**each) for each in content["nodes"]]
    flows = [Flow(**{**each, "reads": tuple(each["reads"])}) for each in content["flows"]]
    return Graph(
        content["pipeline"],
        {node.name: node for node in nodes},
        {flow.name: flow for flow in flows},
    )
