"""The state of a pipeline, without Spark: last run, checkpoints, lag."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from headrace.pipelines.checkpoints import flow_checkpoints, flow_lags
from headrace.pipelines.graph import TEMPORARY_VIEW, Graph, graph_of
from headrace.pipelines.project import BOOTSTRAP, Project, read_json
from headrace.pipelines.security import client_settings


def read_status(project: Project) -> dict[str, Any]:
    """Read the state of a pipeline from files only; lags are None."""
    last_run, graph = read_json(project.last_run), _graph(project)
    checkpoints = flow_checkpoints(project.checkpoints, graph)
    ran = {each["flow"]: each for each in (last_run["flows"] if last_run else ())}
    flows = []
    for flow in graph.flows.values():
        target = graph.nodes.get(flow.target)
        if target is not None and target.kind == TEMPORARY_VIEW:
            continue
        own, checkpoint = ran.get(flow.name, {}), checkpoints.get(flow.name)
        time_s = None if checkpoint is None else checkpoint.time_s
        flows.append(
            {
                "flow": flow.name,
                "target": flow.target,
                "state": own.get("state"),
                "rows_read": own.get("rows_read"),
                "rows_written": own.get("rows_written"),
                "batch": None if checkpoint is None else checkpoint.batch,
                "checkpoint": None if time_s is None else _time(time_s),
                "topics": graph.topics_of(flow.name),
                "lag": None,
            }
        )
    return {"pipeline": project.spec.name, "last_run": last_run, "flows": flows}


def with_lags(
    project: Project, status: dict[str, Any], configuration: Mapping[str, str]
) -> dict[str, Any]:
    """Add the lags of flows to a status; raises ClientError if no broker responds."""
    checkpoints = flow_checkpoints(project.checkpoints, _graph(project))
    settings = client_settings(configuration)
    found = flow_lags(configuration[BOOTSTRAP], checkpoints, settings)
    flows = [{**flow, "lag": found.get(flow["flow"])} for flow in status["flows"]]
    return {**status, "flows": flows}


def _graph(project: Project) -> Graph:
    content = read_json(project.graph)
    return Graph(project.spec.name) if content is None else graph_of(content)


def _time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
