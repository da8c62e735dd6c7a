"""Run a pipeline once on a Spark Connect server.

Owns the session and the requests to Spark. A `Show` displays the progress.

1. A flow with an invalid definition, and the flows that read it, are skipped; the others run.
2. A run ends with an outcome, written to `.headrace/last-run.json`, also if Ctrl-C ended it.
3. A full refresh that was interrupted is repeated by the next run.
4. No flow starts before executors have proved that they run this version of Headrace and share
   the storage with the driver.
"""

import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.client import ClientError, connect
from headrace.client.core.options import SecuritySettings
from headrace.pipelines.accounts import Accounts, Incomplete
from headrace.pipelines.checkpoints import (
    REACH_TIMEOUT_MS,
    Positions,
    begin_checkpoint,
    flow_checkpoints,
    flow_lags,
    topic_ends,
)
from headrace.pipelines.definitions import Definitions, load
from headrace.pipelines.executors import ExecutorsDiffer, check_executors
from headrace.pipelines.graph import SINK, TABLE, TEMPORARY_VIEW, VIEW, Flow, Graph
from headrace.pipelines.incremental import Incremental, NotIncremental
from headrace.pipelines.listening import ProgressListener, Show, keep_listening
from headrace.pipelines.merging import CannotMerge, Merging
from headrace.pipelines.outcome import Outcome, Request
from headrace.pipelines.problems import sentence
from headrace.pipelines.project import BOOTSTRAP, Project, read_json, write_json
from headrace.pipelines.replacing import Replacement
from headrace.pipelines.run_machine import (
    BROKEN,
    COMPLETED,
    ENDED,
    FAILED,
    QUEUED,
    RUNNING,
    SKIPPED,
    STOPPED,
    UNCHECKED,
    FlowRun,
    Run,
)
from headrace.pipelines.security import client_settings
from headrace.pipelines.server import Server, ServerFailed
from headrace.pipelines.storage import NotShared, prove_shared
from headrace.pipelines.tables import Tables
from headrace.pipelines.versions import Versions
from headrace.pipelines.workers import QueryWorkers
from headrace.spark.pyspark_api import (
    create_dataflow_graph,
    drop_dataflow_graph,
    limit_retries,
    poll_flows_often,
    start_run,
)
from headrace.spark.sessions import REDACTION, SECRET_OPTION, has_no_executors

_LAST_EVENTS_TIMEOUT_S = 300.0
_LAST_EVENTS_AFTER_FAILURE_TIMEOUT_S = 10.0
# Spark would retry a failed flow after a minute; the next run retries it soon enough.
RETRIES = "spark.sql.pipelines.maxFlowRetryAttempts"
ISOLATION = "spark.sql.artifact.isolation.enabled"
# Spark waits ten seconds for a Python worker to start. On a busy machine this can be too short, so
# flows with this error run again.
_WORKER_DID_NOT_START = "Python worker failed to connect back"
_ATTEMPTS_MAX = 5
# All retries of a request together take about a second.
_RETRIES = 3


class RunFailed(Exception):
    """The run failed as a whole, for a reason that is not specific to a flow."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


@contextmanager
def session(
    address: str, configuration: Mapping[str, str], *, is_own_server: bool = False
) -> Iterator[Any]:
    """A session on a Connect server. All its queries end with it."""
    try:
        spark: Any = SparkSession.builder.remote(address).getOrCreate()
        spark.conf.set(RETRIES, "0")
        if not spark.conf.get(REDACTION, ""):
            spark.conf.set(REDACTION, SECRET_OPTION)
        if is_own_server:
            # Otherwise each query starts its own Python processes. A server that is shared with
            # other clients needs the isolation.
            spark.conf.set(ISOLATION, "false")
            # PySpark would repeat each request for ten minutes after the server has ended.
            limit_retries(spark, _RETRIES)
            poll_flows_often(spark)
        for name, value in configuration.items():
            spark.conf.set(name, value)
    except PySparkException as error:
        raise RunFailed(
            f"Spark rejected the session: {sentence(str(error))}", str(error)
        ) from error
    try:
        keep_listening(spark)
        yield spark
    finally:
        # PySpark warns that its listeners receive no more events.
        warnings.filterwarnings("ignore", module=r"pyspark\.sql\.connect\.streaming")
        with suppress(PySparkException):
            spark.stop()


class Runner:
    def __init__(
        self,
        project: Project,
        spark: Any,
        configuration: Mapping[str, str],
        server: Server,
        show: Show,
    ) -> None:
        self._project = project
        self._spark = spark
        self._configuration = dict(configuration)
        self._show = show
        self._graph_id = ""
        self._server_ended = server.ended
        # The server of this process sees the same files as this process.
        self._is_own_server = server.mark is not None
        self._workers = QueryWorkers(spark, server.mark)
        self._is_storage_proved = False
        self._servers: dict[str, SecuritySettings] = {}
        self._tables = Tables(spark, project.prefix, is_own_server=self._is_own_server)
        self._accounts = Accounts(self._tables, project.checkpoints, project.storage)
        self._versions = Versions(spark, self._tables, keep=project.versions_kept(configuration))
        self._incremental = Incremental(spark, self._tables, self._versions, configuration)
        self._replacement = Replacement(spark, self._tables)
        # Other programs can use a shared server at the same time, so its tables are not merged.
        mergeable = project.checkpoints if self._is_own_server else None
        self._merging = Merging(spark, self._tables, mergeable)

    def run(self, request: Request) -> Outcome:
        """Reload the definitions and run them once."""
        try:
            return self._run(request)
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:
            # Such as a full disk.
            raise RunFailed(
                f"cannot use the files of the pipeline: {error}. Correct this and run again; "
                "every flow resumes where it stopped"
            ) from error
        except (RunFailed, PySparkException) as error:
            ending = self._server_ended()
            if ending is None:
                raise
            raise ServerFailed(
                f"Spark has ended: {ending}. Run again; every flow resumes where it stopped"
            ) from error

    def _run(self, request: Request) -> Outcome:
        began_s = time.monotonic()
        self._new_graph()
        definitions = load(self._project, self._spark, self._graph_id)
        self._project.prepare_state()
        write_json(self._project.graph, definitions.graph.to_json())
        outcome = Outcome(
            self._project.spec.name, request.dry, datetime.now(UTC), definitions.graph
        )
        outcome.problems += definitions.problems
        self._servers = definitions.servers
        try:
            self._check_brokers(definitions)
            if not request.dry:
                self._prove_storage()
            request = self._with_interrupted_refresh(request, definitions.graph, outcome)
            to_refresh = self._to_refresh(definitions, request)
            self._workers.keep()
            outcome.warnings += self._accounts.begin(definitions.graph, to_refresh, dry=request.dry)
            updated: list[str] = []
            if not request.dry:
                updated += self._incremental.begin(definitions, to_refresh)
                updated += self._replacement.begin(definitions)
            if to_refresh and not request.dry:
                write_json(self._project.refresh, sorted(to_refresh))
            run = self._run_valid(definitions, request, outcome, updated)
            if not request.dry:
                self._project.refresh.unlink(missing_ok=True)
            self._accounts.end(run, definitions.graph)
            self._update(run, definitions, updated)
            complete = self._complete_views(run, definitions.graph)
            self._prove_views(
                set(complete) - {definitions.graph.flows[name].target for name in updated}
            )
            self._incremental.record(complete)
            self._versions.publish(complete)
            self._workers.end()
            for flow in run.confirm():
                self._show.changed(flow)
            failed = [flow for flow in run.flows.values() if flow.error is not None]
            outcome.problems += [
                definitions.problem(each.name, each.error or "") for each in failed
            ]
            if not request.dry and not outcome.problems and not self._incomplete(outcome):
                outcome.warnings += self._merge(definitions)
        except (ExecutorsDiffer, NotShared, Incomplete, NotIncremental) as error:
            raise RunFailed(str(error)) from error
        except KeyboardInterrupt:
            outcome.state = STOPPED
            raise
        finally:
            self._accounts.close()
            self._versions.leave()
            outcome.seconds = time.monotonic() - began_s
            self._finish(definitions, outcome)
            if not request.dry:
                write_json(self._project.last_run, outcome.to_json())
        return outcome

    def _new_graph(self) -> None:
        """Remove the definitions of the pipeline from Spark."""
        if self._graph_id:
            drop_dataflow_graph(self._spark, self._graph_id)
        spec = self._project.spec
        self._graph_id = create_dataflow_graph(
            self._spark, spec.catalog, spec.database, {RETRIES: "0", **self._configuration}
        )

    @staticmethod
    def _complete_views(run: Run, graph: Graph) -> list[str]:
        done = [flow.name for flow in run.flows.values() if flow.state == COMPLETED]
        targets = [graph.flows[name].target for name in done if name in graph.flows]
        return [name for name in targets if graph.nodes[name].kind == VIEW]

    def _prove_storage(self) -> None:
        """Create the database, and prove once that executors share its files with the driver."""
        if self._is_storage_proved:
            return
        database = self._project.spec.database
        if self._is_own_server and database is not None and self._project.spec.catalog is None:
            self._spark.sql(f"CREATE DATABASE IF NOT EXISTS `{database}`")
        if not has_no_executors(self._master()):
            if self._is_own_server:
                self._show.say("Checking that executors run Headrace")
                check_executors(self._spark)
            storage = self._project.storage
            roots = [self._tables.database_location(), storage, f"{storage}/_checkpoints"]
            self._show.say("Checking that executors share the storage")
            self._prove(*roots)
        self._is_storage_proved = True

    def _prove_views(self, names: Collection[str]) -> None:
        """Prove the storage again: Spark lists no files of a view, so it might lack some."""
        location = self._tables.database_location()
        if names and location is not None and not has_no_executors(self._master()):
            self._prove(location)

    def _prove(self, *roots: str | None) -> None:
        directory = self._project.directory
        prove_shared(self._spark, [root for root in roots if root is not None], directory)

    def _master(self) -> str:
        return str(self._spark.conf.get("spark.master", ""))

    def _check_brokers(self, definitions: Definitions) -> None:
        """Raise an error for a broker that does not respond; Spark would retry for minutes."""
        for address, settings in sorted(definitions.servers.items()):
            try:
                with connect(address, operation_timeout_ms=REACH_TIMEOUT_MS, **settings):
                    pass
            except (ClientError, ValueError) as error:
                raise RunFailed(
                    f"no broker responds at {address}, which this pipeline reads or writes. "
                    "Start it and run again; every flow resumes where it stopped",
                    str(error),
                ) from error

    def _update(self, run: Run, definitions: Definitions, names: Collection[str]) -> None:
        """Compute the views that Headrace updates instead of Spark."""
        graph = definitions.graph
        failed = {flow.name for flow in run.flows.values() if flow.state != COMPLETED}
        failed |= {each.flow for each in definitions.problems if each.flow is not None}
        for name in names:
            flow = run.flows.setdefault(name, FlowRun(name, SKIPPED))
            if name in failed | graph.dependents(failed):
                continue
            flow.state, flow.started_s = RUNNING, time.monotonic()
            self._show.changed(flow)
            try:
                if name in self._replacement:
                    flow.rows_written = self._replacement.update(definitions, name)
                else:
                    flow.rows_read, flow.rows_written = self._incremental.update(definitions, name)
                flow.state = COMPLETED
            except (PySparkException, OSError, pa.ArrowException, NotIncremental) as error:
                flow.state, flow.error = FAILED, str(error)
                failed.add(name)
                self._show.changed(flow)
            flow.ended_s = time.monotonic()
        self._incremental.end()

    def _merge(self, definitions: Definitions) -> list[str]:
        """Merge small files. An error is only a warning, because tables are complete without it."""
        try:
            self._merging.merge(definitions)
        except (PySparkException, OSError, CannotMerge) as error:
            return [f"small files are not merged: {sentence(str(error))}"]
        return []

    def _run_valid(
        self,
        definitions: Definitions,
        request: Request,
        outcome: Outcome,
        updated: Collection[str],
    ) -> Run:
        """Run the flows, except invalid flows and the flows that read from them.

        `updated` are the flows that Headrace computes instead of Spark. A wave is a set of flows
        that run together. Eager flows run in a later wave than the flows whose tables they read.
        """
        graph = definitions.graph
        wrong = {each.flow for each in definitions.problems if each.flow is not None}
        refreshed = self._refreshed(graph, request, definitions)
        refreshed -= {graph.flows[name].target for name in updated}
        waves = graph.waves(definitions.eager)
        run = Run(definitions.prefix)
        for wave in sorted({0, *waves.values()}):
            lasting = [flow for flow in graph.flows.values() if not self._is_temporary(graph, flow)]
            earlier = {flow.name for flow in lasting if waves[flow.target] < wave}
            later = {flow.name for flow in graph.flows.values() if waves[flow.target] > wave}
            if request.dry and not self._have_tables(graph, earlier):
                unchecked = {flow.name for flow in lasting} - earlier - wrong
                run.flows |= {name: FlowRun(name, UNCHECKED) for name in unchecked}
                break
            due = {name for name in refreshed if waves[name] == wave}
            others = earlier | later | set(updated)
            self._run_wave(run, definitions, request, others, wrong, due, outcome)
            wrong |= {flow.name for flow in run.flows.values() if flow.state == FAILED}
        outcome.flows = run.flows
        return run

    def _have_tables(self, graph: Graph, flows: Collection[str]) -> bool:
        """Whether the catalog has the tables that these flows create."""
        targets = {graph.flows[name].target for name in flows}
        tables = [name for name in targets & graph.nodes.keys() if graph.nodes[name].kind != SINK]
        return all(self._spark.catalog.tableExists(name) for name in tables)

    def _run_wave(
        self,
        run: Run,
        definitions: Definitions,
        request: Request,
        others: Collection[str],
        wrong: set[str],
        refreshed: Collection[str],
        outcome: Outcome,
    ) -> None:
        """Run all flows except `others` and `wrong`. Adds flows that Spark rejects to `wrong`.

        Repeats the wave without rejected flows, after a full refresh, or if workers start too late.
        """
        graph, before, attempts = definitions.graph, dict(run.flows), 1
        while True:
            excluded = wrong | graph.dependents(wrong) | set(others)
            rejected = definitions.submit(self._spark, self._graph_id, excluded)
            if not rejected:
                self._start(run, definitions, request, excluded, refreshed, outcome)
                rejected = [definitions.problem(*each) for each in run.unresolved.items()]
            self._new_graph()
            tried = [flow for name, flow in run.flows.items() if name not in before]
            late = [flow for flow in tried if _WORKER_DID_NOT_START in (flow.error or "")]
            if rejected:
                run.flows, run.unresolved = dict(before), {}
                outcome.problems += [each for each in rejected if each not in outcome.problems]
                named = {each.flow for each in rejected if each.flow is not None}
                unnamed = {each.file for each in rejected if each.flow is None}
                named |= {flow.name for flow in graph.flows.values() if flow.file in unnamed}
                if named <= wrong and not definitions.exclude_files(unnamed):
                    raise RunFailed(rejected[0].message, rejected[0].detail)
                wrong |= named
            elif refreshed:
                # Spark has run only the refreshed tables. Now run all flows.
                refreshed = ()
            elif late and attempts < _ATTEMPTS_MAX:
                attempts += 1
                for flow in late:
                    flow.starts -= 1
            else:
                return

    def _with_interrupted_refresh(
        self, request: Request, graph: Graph, outcome: Outcome
    ) -> Request:
        """Add the tables of a full refresh that an earlier run began and did not end.

        Spark resets all checkpoints first, and then empties the tables one by one. If it is killed
        between these steps, a table that was not emptied would get rows twice, or lack new ones.
        """
        known = [name for name, node in graph.nodes.items() if node.kind in (TABLE, VIEW, SINK)]
        begun = [name for name in read_json(self._project.refresh) or () if name in known]
        if request.dry or request.full_refresh_all or not begun:
            return request
        outcome.warnings.append(
            f"a full refresh of {', '.join(begun)} was interrupted. This run repeats it"
        )
        return replace(request, full_refresh=(*request.full_refresh, *begun))

    def _to_refresh(self, definitions: Definitions, request: Request) -> set[str]:
        """The tables and sinks to fill from the start: the named ones and their dependents."""
        graph = definitions.graph
        if request.full_refresh_all:
            return set(graph.nodes)
        targets = {self._existing(graph, definitions.short(name)) for name in request.full_refresh}
        flows = {flow.name for flow in graph.flows.values() if flow.target in targets}
        return {graph.flows[name].target for name in flows | graph.dependents(flows)}

    def _refreshed(self, graph: Graph, request: Request, definitions: Definitions) -> set[str]:
        """The tables to name to Spark for a full refresh.

        A flow into a sink gets a new checkpoint. With the old one, it would skip the new rows.
        """
        if request.full_refresh_all:
            return set()
        tables, targets = set(), self._to_refresh(definitions, request)
        for name in [flow.name for flow in graph.flows.values() if flow.target in targets]:
            target = graph.nodes[graph.flows[name].target]
            if target.kind == SINK and self._project.checkpoints is not None:
                begin_checkpoint(self._project.checkpoints, target.name, name)
            elif target.kind in (TABLE, VIEW):
                tables.add(target.name)
        return tables

    def _existing(self, graph: Graph, name: str) -> str:
        """The same name; RunFailed if the pipeline does not define it."""
        if name not in graph.nodes:
            kinds = (TABLE, VIEW, SINK)
            known = sorted(node.name for node in graph.nodes.values() if node.kind in kinds)
            raise RunFailed(f"unknown table {name!r}. Known: {', '.join(known) or 'none'}")
        return name

    def _start(
        self,
        run: Run,
        definitions: Definitions,
        request: Request,
        excluded: Collection[str],
        refreshed: Collection[str],
        outcome: Outcome,
    ) -> None:
        outcome.flows = run.flows
        names = [
            flow.name
            for flow in definitions.graph.flows.values()
            if not self._is_temporary(definitions.graph, flow) and flow.name not in excluded
        ]
        if not names:
            return
        for name in names:
            run.flows.setdefault(name, FlowRun(name))
        self._show.begins(run)
        if not request.dry:
            targets = [definitions.graph.flows[name].target for name in names]
            kinds = definitions.graph.nodes
            self._versions.begin([name for name in targets if kinds[name].kind == VIEW])
        listener = ProgressListener(run, self._show)
        keep_listening(self._spark)
        self._spark.streams.addListener(listener)
        try:
            self._follow(run, definitions.graph, request, refreshed)
            if not run.unresolved and not request.dry:
                self._wait_for_last_events(run, listener, definitions.graph)
        finally:
            self._spark.streams.removeListener(listener)

    def _follow(self, run: Run, graph: Graph, request: Request, refreshed: Collection[str]) -> None:
        try:
            for result in start_run(
                self._spark,
                self._graph_id,
                full_refresh=sorted(refreshed),
                full_refresh_all=request.full_refresh_all,
                refresh=[],
                dry=request.dry,
                storage=self._project.storage,
            ):
                if "pipeline_event_result" not in result:
                    continue
                message = result["pipeline_event_result"].event.message
                flow = run.apply_event(message, time.monotonic())
                # Spark can report a flow as completed and then as failed.
                if flow is not None and flow.state != COMPLETED:
                    self._show.changed(flow)
        except PySparkException as error:
            failed = any(flow.state == FAILED for flow in run.flows.values())
            if run.unresolved or failed:
                return
            blamed = run.named_in(str(error), graph)
            if not blamed:
                raise RunFailed(sentence(str(error)), str(error)) from error
            run.unresolved |= dict.fromkeys(blamed, str(error))

    def _wait_for_last_events(self, run: Run, listener: ProgressListener, graph: Graph) -> None:
        """Wait for the last events of queries, which arrive after the end of the run."""
        streaming = [
            flow
            for flow in run.flows.values()
            if flow.started_s is not None and graph.is_streaming(flow.name)
        ]
        begun = sum(flow.starts for flow in streaming)
        # A flow that failed at its start has no query, so no event arrives.
        failed = any(flow.state == FAILED for flow in streaming)
        timeout_s = _LAST_EVENTS_AFTER_FAILURE_TIMEOUT_S if failed else _LAST_EVENTS_TIMEOUT_S
        if not listener.wait_for(begun, timeout_s, self._spark):
            return
        for flow in streaming:
            if flow.state == COMPLETED and flow.rows_read is None:
                # The query ended without a micro-batch, so it had no rows to read.
                flow.rows_read = flow.rows_written = 0

    # The result.

    def _is_temporary(self, graph: Graph, flow: Flow) -> bool:
        return flow.target in graph.nodes and graph.nodes[flow.target].kind == TEMPORARY_VIEW

    def _finish(self, definitions: Definitions, outcome: Outcome) -> None:
        """Set the final state of every flow and of the run."""
        wrong = {each.flow for each in outcome.problems}
        for flow in definitions.graph.flows.values():
            if self._is_temporary(definitions.graph, flow):
                continue
            own = outcome.flows.setdefault(flow.name, FlowRun(flow.name, SKIPPED))
            if own.state in ENDED and own.state != SKIPPED:
                continue
            if own.started_s is not None:
                own.state, own.ended_s = STOPPED, time.monotonic()
            elif flow.name in wrong:
                own.state = BROKEN
            elif outcome.dry:
                own.state = "valid" if own.state == QUEUED else SKIPPED
            else:
                own.state = SKIPPED
        if outcome.state == COMPLETED and (outcome.problems or self._incomplete(outcome)):
            outcome.state = FAILED
        if not outcome.dry:
            outcome.lags = self.lags(definitions.graph)

    def lags(self, graph: Graph) -> dict[str, int]:
        """The lag of each flow in records; empty if the brokers do not respond."""
        checkpoints = flow_checkpoints(self._project.checkpoints, graph)
        with suppress(ClientError, ValueError):
            settings = client_settings(self._configuration)
            return flow_lags(self._configuration[BOOTSTRAP], checkpoints, settings)
        return {}

    def positions(self, graph: Graph) -> Positions:
        """The offset from which the slowest flow resumes reading each partition."""
        found: Positions = {}
        for each in flow_checkpoints(self._project.checkpoints, graph).values():
            for partition, offset in each.positions.items():
                found[partition] = min(offset, found.get(partition, offset))
        return found

    def ends(self, graph: Graph) -> dict[str, Positions]:
        """The end offsets of the topics that the pipeline reads, by address of a broker."""
        found = {}
        for server, settings in self._servers.items():
            with suppress(ClientError, ValueError):
                found[server] = topic_ends(server, graph, settings)
        return found

    def file_times(self) -> dict[Path, float]:
        """The modification times of the files that define the pipeline."""
        found = {}
        for path in self._project.files():
            with suppress(FileNotFoundError):
                found[path] = path.stat().st_mtime
        return found

    @staticmethod
    def _incomplete(outcome: Outcome) -> bool:
        good = (COMPLETED, UNCHECKED, "valid")
        return any(flow.state not in good for flow in outcome.flows.values())
