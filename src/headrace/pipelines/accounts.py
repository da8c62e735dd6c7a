"""Compare the rows that Spark committed with the files of the tables, after each run.

Owns the listing of a run's tables before and after it. Resets the checkpoints of flows that lost
rows.

1. A flow whose rows are not in its table has failed, and so has every flow that reads them.
2. Checkpoints of such flows are reset to the state before the run, if this process can reach
   them. Otherwise, the next run fails before its first flow.
3. No flow starts if the last micro-batch of its table is older than the last finished one of its
   checkpoint, or newer than the last planned one. Spark skips each micro-batch whose number the
   table has, and never repeats one that the checkpoint has.
"""

from collections.abc import Collection
from pathlib import Path

from headrace.pipelines.checkpoints import newest_checkpoint
from headrace.pipelines.graph import TABLE, VIEW, Flow, Graph
from headrace.pipelines.rollback import Snapshot
from headrace.pipelines.run_machine import COMPLETED, FlowRun, Run
from headrace.pipelines.tables import Files, Table, Tables
from headrace.pipelines.written import LOG, last_batch

_WOULD_SKIP = "Spark would skip new rows"
_ALWAYS_WRITE_A_FILE = ("parquet", "orc")


class Incomplete(Exception):
    """A table lacks rows of earlier runs, or would skip new ones; the text has the next step."""


class Accounts:
    def __init__(self, tables: Tables, checkpoints: Path | None, storage: str) -> None:
        """`checkpoints` is the directory of checkpoints on this machine, `storage` its URI."""
        self._tables = tables
        self._checkpoints = checkpoints
        self._storage = storage
        self._is_compared = False
        self._before: dict[str, Files] = {}
        self._snapshot: Snapshot | None = None

    def begin(self, graph: Graph, refreshed: Collection[str], *, dry: bool) -> list[str]:
        """List the tables; `refreshed` are filled from the start, so they may lack files.

        Returns a warning per materialized view that lacks files: the run computes it again.
        """
        self._before, warnings = {}, []
        for name in _stored(graph):
            table = self._tables.find(name)
            self._before[name] = Files() if table is None else self._tables.files(table)
            missing = self._before[name].missing
            if not missing or name in refreshed or dry:
                continue
            lacks = (
                f"table {name} lacks {len(missing)} of {len(self._before[name].uris)} files that "
                f"an earlier run committed, such as {missing[0]}"
            )
            if graph.nodes[name].kind == VIEW:
                warnings.append(f"{lacks}. This run replaces them if its flow completes")
                continue
            raise Incomplete(
                f"{lacks}. Restore them, or fill the table again from its "
                f"sources: headrace pipeline run --full-refresh {name}"
            )
        if not dry:
            self._compare(graph, refreshed)
        self._snapshot = None if dry or self._checkpoints is None else self._take_snapshot(graph)
        return warnings

    def _compare(self, graph: Graph, refreshed: Collection[str]) -> None:
        """Reject a table whose last micro-batch does not match its flow's checkpoint."""
        for name in _stored(graph):
            table = self._tables.find(name)
            flows = [flow for flow in graph.flows.values() if flow.target == name]
            is_streaming = graph.nodes[name].kind == TABLE and len(flows) == 1
            if table is None or not table.has_files or not is_streaming or name in refreshed:
                continue
            difference = self._difference(table, flows[0])
            if difference is not None:
                raise Incomplete(
                    f"table {name} and the checkpoint of its flow {flows[0].name} do not match: "
                    f"{difference}. The table is in {table.location}, checkpoints are in "
                    f"{self._storage}. If one of them was moved or deleted, restore it. Or fill "
                    f"the table again from its sources: headrace pipeline run --full-refresh {name}"
                )
        self._is_compared = True

    def _difference(self, table: Table, flow: Flow) -> str | None:
        path = self._tables.path(table.location)
        if path is None or self._checkpoints is None or not self._tables.is_own_server:
            # Spark lists these files, which is slow. Compare once per process: that is enough to
            # detect a changed specification.
            if self._is_compared or not self._before[table.name].uris or self._has_begun(flow):
                return None
            batches = "the table has rows, and the checkpoint has no micro-batch"
            return f"{batches}. {_WOULD_SKIP}"
        written = last_batch(path / LOG)
        newest = newest_checkpoint(self._checkpoints, flow.target, flow.name)
        planned, finished = (
            -1 if newest is None else last_batch(newest / log) for log in ("offsets", "commits")
        )
        if finished <= written <= planned:
            return None
        batches = (
            f"the last micro-batch is {_shown(written)} in the table, and {_shown(planned)} in the "
            "checkpoint"
        )
        is_older = written < finished
        return f"{batches}. {'Rows are missing' if is_older else _WOULD_SKIP}"

    def _has_begun(self, flow: Flow) -> bool:
        """Whether Spark finds a micro-batch in a flow's checkpoint."""
        target, name = (each.rpartition(".")[2] for each in (flow.target, flow.name))
        # Spark 4.1 has no directories of the catalog and the database.
        return any(
            self._tables.exist(f"{self._storage}/_checkpoints/{above}{target}/{name}/*/offsets/*")
            for above in ("*/*/", "")
        )

    def _take_snapshot(self, graph: Graph) -> Snapshot:
        assert self._checkpoints is not None
        snapshot = Snapshot(self._checkpoints)
        for flow in graph.flows.values():
            if graph.is_streaming(flow.name):
                snapshot.take_flow(flow)
        for name, directory in self._directories(graph, _stored(graph)).items():
            snapshot.take_table(name, directory)
        return snapshot

    def _directories(self, graph: Graph, names: Collection[str]) -> dict[str, Path]:
        """Directories of streaming tables of plain files that this process can reach."""
        found = {}
        for name in names:
            table = self._tables.find(name)
            if table is None or not table.has_files or graph.nodes[name].kind != TABLE:
                continue
            path = self._tables.path(table.location)
            if path is not None:
                found[name] = path
        return found

    def end(self, run: Run, graph: Graph) -> None:
        """Fail the flows that lost rows, undo them, and count the rows of the others."""
        after = self._count(run, graph)
        lost = {
            flow.name: reason
            for flow in run.flows.values()
            if flow.started_s is not None and (reason := self._loss(flow, graph, after))
        }
        later = graph.dependents(lost)
        for name, reason in lost.items():
            run.fail(name, f"{reason} {self._consequence(graph, name)}")
        for name in later:
            run.fail(name, f"it reads rows of {', '.join(sorted(lost))} that are missing")
        if lost and self._snapshot is not None:
            undone = [graph.flows[name] for name in {*lost, *later} if graph.is_streaming(name)]
            targets = {flow.target for flow in undone}
            self._snapshot.restore(undone, self._directories(graph, targets & after.keys()))
        self.close()

    def close(self) -> None:
        """Delete the snapshot of this run."""
        if self._snapshot is not None:
            self._snapshot.drop()
        self._snapshot = None

    def _count(self, run: Run, graph: Graph) -> dict[str, Files]:
        after: dict[str, Files] = {}
        targets = [flow.target for flow in graph.flows.values()]
        for flow in run.flows.values():
            target = graph.flows[flow.name].target if flow.name in graph.flows else ""
            table = self._tables.find(target) if target in self._before else None
            if flow.started_s is None or table is None or not table.is_listed:
                continue
            after[target] = self._tables.files(table)
            # Files do not show which of several flows wrote them.
            is_countable = flow.state == COMPLETED and targets.count(target) == 1
            if is_countable and not after[target].missing:
                new = after[target].uris - self._before[target].uris
                flow.rows_written = self._tables.rows(table, new)
        return after

    def _loss(self, flow: FlowRun, graph: Graph, after: dict[str, Files]) -> str | None:
        """The error if files of a flow's table are missing; None if the table is complete."""
        target = graph.flows[flow.name].target if flow.name in graph.flows else ""
        if target not in after:
            return None
        files = after[target]
        if files.missing:
            return (
                f"rows are lost: the driver does not find {len(files.missing)} of "
                f"{len(files.uris)} files that executors committed to table {target}, "
                f"such as {files.missing[0]}."
            )
        table = self._tables.find(target)
        is_view = graph.nodes[target].kind == VIEW and flow.state == COMPLETED
        if is_view and table is not None and not files.uris:
            return _empty(table)
        return None

    def _consequence(self, graph: Graph, flow: str) -> str:
        if not graph.is_streaming(flow):
            return "Check that driver and executors share this directory."
        if self._snapshot is None:
            name = graph.flows[flow].target
            return f"Restore the files, or run again with --full-refresh {name}."
        return (
            "The checkpoint is reset, and the next run reads these rows again. "
            "Check that driver and executors share this directory."
        )


def _empty(table: Table) -> str | None:
    if table.format not in _ALWAYS_WRITE_A_FILE or table.is_partitioned:
        return None
    # Spark writes a file also for a result without rows.
    return f"rows are lost: the driver finds no file in {table.location} after the flow completed."


def _shown(batch: int) -> str:
    return "none" if batch < 0 else str(batch)


def _stored(graph: Graph) -> list[str]:
    """Tables and views that store rows."""
    return [name for name, node in graph.nodes.items() if node.kind in (TABLE, VIEW)]
