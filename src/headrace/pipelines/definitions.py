"""Loads the definitions of a project file by file, and registers the valid ones with Spark.

Owns the imported modules and their registration with Spark. Spark's own loader stops at the first
error; this one continues with the other files and flows.

1. A file that cannot be loaded defines nothing, not even the definitions before the wrong line.
2. The function of a flow is called once; every graph uses the same result.
"""

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from headrace.client.core.options import SecuritySettings
from headrace.pipelines import sql
from headrace.pipelines.formats import FILES
from headrace.pipelines.graph import (
    SINK,
    SOURCE,
    TABLE,
    TEMPORARY_VIEW,
    TOPIC,
    VIEW,
    Flow,
    Graph,
    Node,
)
from headrace.pipelines.problems import (
    Problem,
    mentioned_line,
    python_place,
    raised_place,
    sentence,
    sql_line,
)
from headrace.pipelines.project import FORMAT, Project
from headrace.spark.options import security_of
from headrace.spark.pyspark_api import (
    AutoCdcFlow,
    GraphElementRegistry,
    MaterializedView,
    Output,
    Sink,
    SparkConnectGraphElementRegistry,
    Table,
    TemporaryView,
    add_pipeline_analysis_context,
    block_session_mutations,
    connect_plan,
    graph_element_registration_context,
)
from headrace.spark.pyspark_api import Flow as SparkFlow
from headrace.spark.versions import NAMES_SINCE, shown

_SERVERS = "kafka.bootstrap.servers"
_SUBSCRIPTIONS = ("subscribe", "subscribepattern", "assign")
# Operations that Spark 4.3 analyses immediately: it takes the tables that they read from its
# catalog, and does not detect that the pipeline must fill these tables first.
_EAGER = frozenset(
    {
        *("WithColumns", "WithColumnsRenamed", "WithWatermark", "Drop", "ToSchema", "Pivot"),
        *("NAFill", "NADrop", "NAReplace", "AsOfJoin", "NearestByJoin", "Sample", "StatSampleBy"),
        *("GroupMap", "CoGroupMap", "ApplyInPandasWithState", "StatSummary", "StatDescribe"),
        *("StatCov", "StatCorr", "StatApproxQuantile", "StatCrosstab", "StatFreqItems"),
    }
)
_EAGER_VIEW = (
    " Spark cannot apply withWatermark, drop and similar methods to a temporary view of a "
    "pipeline: read a table instead, or use only select, where and groupBy."
)


@dataclass(frozen=True)
class SqlFile:
    path: Path
    text: str
    statements: tuple[sql.Statement, ...]


@dataclass
class Definitions:
    """The definitions in the files of a project, and the errors in them."""

    project: Project
    graph: Graph
    outputs: list[Output] = field(default_factory=list)
    flows: list[SparkFlow | AutoCdcFlow] = field(default_factory=list)
    sql_files: list[SqlFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    functions: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The source of each flow's function, and the line where it begins."""
    servers: dict[str, SecuritySettings] = field(default_factory=dict)
    """The brokers that flows read and write, with the security settings of their options."""
    eager: set[str] = field(default_factory=set)
    """Flows that cannot be defined before the tables that they read exist."""
    properties: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """The table properties of tables and materialized views."""
    formats: dict[str, str] = field(default_factory=dict)
    """The formats of tables and materialized views that name one."""

    @property
    def prefix(self) -> str:
        return self.project.prefix

    def short(self, name: str) -> str:
        plain = sql.plain_name(name)
        database = self.prefix.split(".")[1]
        return plain.removeprefix(self.prefix).removeprefix(f"{database}.")

    def problem(self, flow: str, text: str) -> Problem:
        """An error that Spark found in a flow, with the line of the project that caused it."""
        known = self.graph.flows.get(flow)
        found = python_place(text, self.project.directory)
        if found is not None:
            file, line = self.project.shown(found[0]), found[1]
        elif known is None:
            return Problem(flow, None, None, sentence(text), text)
        else:
            file, line = known.file, self._line(known, text)
        return Problem(flow, file, line, sentence(text), text)

    def _line(self, flow: Flow, text: str) -> int:
        if flow.name in self.functions:
            source, first_line = self.functions[flow.name]
            return mentioned_line(text, source, first_line) or flow.line
        for file in self.sql_files:
            for statement in file.statements:
                if self.short(statement.flow or "") == flow.name:
                    return sql_line(text, statement.first_line) or statement.line
        return flow.line

    def frame(self, spark: Any, flow: str) -> Any:
        """The query of a flow; names in it are resolved when it is evaluated."""
        for each in self.flows:
            if self.short(each.name or each.target) == flow and not isinstance(each, AutoCdcFlow):
                return each.func()
        for file in self.sql_files:
            for statement in file.statements:
                if self.short(statement.flow or "") == flow:
                    return spark.sql(file.text[statement.query_start : statement.end])
        raise KeyError(flow)

    def submit(self, spark: Any, graph_id: str, excluded: Collection[str]) -> list[Problem]:
        """Register all definitions except the excluded flows; returns those that Spark rejected."""
        registry = SparkConnectGraphElementRegistry(spark, graph_id)
        filled = {flow.target for flow in self.graph.flows.values() if flow.name not in excluded}
        without_flow = {flow.target for flow in self.graph.flows.values()} - filled
        rejected: list[Problem] = []
        for output in self.outputs:
            if self.short(output.name) not in without_flow:
                rejected += self._attempt(output, registry.register_output)
        for flow in self.flows:
            if self.short(flow.name or flow.target) in excluded:
                continue
            if isinstance(flow, AutoCdcFlow):
                rejected += self._attempt(flow, registry.register_auto_cdc_flow)
            else:
                rejected += self._attempt(flow, registry.register_flow)
        for file in self.sql_files:
            rejected += self._submit_sql(registry, file, excluded)
        return rejected

    def exclude_files(self, files: Collection[str | None]) -> bool:
        """Exclude SQL files that Spark cannot parse; returns whether any was excluded."""
        kept = [each for each in self.sql_files if self.project.shown(each.path) not in files]
        is_any_excluded = len(kept) < len(self.sql_files)
        self.sql_files = kept
        return is_any_excluded

    def _attempt(self, element: Any, register: Callable[[Any], None]) -> list[Problem]:
        try:
            register(element)
        except PySparkException as error:
            at, text = element.source_code_location, str(error)
            file = self.project.shown(at.filename)
            name = self.short(element.name or element.target)
            message = sentence(text)
            if name in self.eager and "TABLE_OR_VIEW_NOT_FOUND" in text:
                message += _EAGER_VIEW
            return [Problem(name, file, at.line_number, message, text)]
        return []

    def _submit_sql(
        self, registry: SparkConnectGraphElementRegistry, file: SqlFile, excluded: Collection[str]
    ) -> list[Problem]:
        hidden = {each.flow for each in file.statements if self.short(each.flow or "") in excluded}
        text = sql.without(file.text, {name for name in hidden if name is not None})
        if not sql.statements(text):
            return []
        try:
            registry.register_sql(text, file.path.relative_to(self.project.directory))
        except PySparkException as error:
            return [self._sql_problem(file, str(error))]
        return []

    def _sql_problem(self, file: SqlFile, error: str) -> Problem:
        """The problem of a rejected SQL file: Spark quotes the statement that it cannot parse."""
        shown = self.project.shown(file.path)
        for statement in file.statements:
            own = file.text[statement.start : statement.end].strip()
            if own.splitlines()[-1] in error:
                line = sql_line(error, statement.first_line) or statement.line
                flow = None if statement.flow is None else self.short(statement.flow)
                return Problem(flow, shown, line, sentence(error), error)
        return Problem(None, shown, None, sentence(error), error)


def load(project: Project, spark: Any, graph_id: str) -> Definitions:
    """Import and read the project's files."""
    whole = Definitions(project, Graph(project.spec.name))
    with _in_directory(project.directory):
        for path in project.files():
            part = Definitions(project, Graph(project.spec.name))
            problem = _load_file(path, _Collector(part, spark, graph_id), spark, graph_id)
            whole.problems += part.problems
            if problem is not None:
                whole.problems.append(problem)
                continue
            whole.outputs += part.outputs
            whole.flows += part.flows
            whole.sql_files += part.sql_files
            whole.functions |= part.functions
            whole.servers |= part.servers
            whole.eager |= part.eager
            whole.properties |= part.properties
            whole.formats |= part.formats
            whole.graph.nodes |= part.graph.nodes
            whole.graph.flows |= part.graph.flows
    _complete(whole)
    whole.problems += [*_defined_twice(whole), *_without_target(whole)]
    whole.problems += _several_writers(whole, spark)
    return whole


def _defined_twice(definitions: Definitions) -> Iterator[Problem]:
    """Names that are defined twice: Spark would run no flow."""
    shown, defined = definitions.project.shown, list[tuple[str, str, int]]()
    explicit = [flow for flow in definitions.flows if flow.name not in (None, flow.target)]
    for each in [*definitions.outputs, *explicit]:
        at = each.source_code_location
        line = at.line_number or 1
        defined.append((definitions.short(each.name or ""), shown(at.filename), line))
    for file in definitions.sql_files:
        for statement in file.statements:
            name = statement.flow if statement.kind is None else statement.target
            if name is not None:
                defined.append((definitions.short(name), shown(file.path), statement.line))
    first: dict[str, str] = {}
    for name, file_name, line in defined:
        if name in first:
            message = f"{name} is also defined in {first[name]}. Rename one of them"
            yield Problem(name, file_name, line, message, message)
        first.setdefault(name, f"{file_name}:{line}")


def _load_file(path: Path, collector: "_Collector", spark: Any, graph_id: str) -> Problem | None:
    project = collector.definitions.project
    if path.suffix == ".sql":
        collector.register_sql(path.read_text(encoding="utf-8"), path)
        return None
    if path.suffix != ".py":
        message = "not a .py or .sql file. Remove it from 'libraries'"
        return Problem(None, project.shown(path), None, message, message)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["spark"] = spark
    try:
        with (
            graph_element_registration_context(collector),
            add_pipeline_analysis_context(spark, graph_id, None),
            block_session_mutations(),
        ):
            spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 - it is the user's code.
        return _raised(project, None, error, (str(path), 1))
    return None


def _raised(
    project: Project, flow: str | None, error: Exception, fallback: tuple[str, int]
) -> Problem:
    import traceback

    file, line = raised_place(error, project.directory) or fallback
    text = sentence(str(error)) if isinstance(error, PySparkException) else str(error)
    name = "" if isinstance(error, PySparkException) else f"{type(error).__name__}: "
    if isinstance(error, SyntaxError):
        text = error.msg
    if isinstance(error, AttributeError) and error.name in NAMES_SINCE:
        text += f". It requires PySpark {shown(NAMES_SINCE[error.name])}"
    detail = "".join(traceback.format_exception(error))
    return Problem(flow, project.shown(file), line, f"{name}{text}".removesuffix(": "), detail)


class _Collector(GraphElementRegistry):
    """Collects the definitions of one file."""

    def __init__(self, definitions: Definitions, spark: Any, graph_id: str) -> None:
        self.definitions = definitions
        self._spark = spark
        self._graph_id = graph_id

    def register_output(self, output: Output) -> None:
        kind, detail = TABLE, None
        if isinstance(output, Table):
            name = self.definitions.short(output.name)
            self.definitions.properties[name] = output.table_properties
            if output.format is not None:
                self.definitions.formats[name] = output.format.lower()
        if isinstance(output, MaterializedView):
            kind = VIEW
        elif isinstance(output, TemporaryView):
            kind = TEMPORARY_VIEW
        elif isinstance(output, Sink):
            kind = SINK
            topic = output.options.get("topic")
            detail = f"topic {topic}" if topic else output.format
            self._note_server(output.format, output.options)
        self._add_node(Node(self.definitions.short(output.name), kind, detail))
        self.definitions.outputs.append(output)

    def register_flow(self, flow: SparkFlow) -> None:
        own, name = self.definitions, self.definitions.short(flow.name)
        at = flow.source_code_location
        own.functions[name] = _source(flow.func)
        reads: tuple[str, ...] = ()
        try:
            with add_pipeline_analysis_context(self._spark, self._graph_id, flow.name):
                frame: Any = flow.func()
            if not hasattr(frame, "_plan"):
                raise TypeError(f"{flow.name} returns {type(frame).__name__}, not a DataFrame")
            plan = connect_plan(frame, self._spark)
            reads = tuple(dict.fromkeys(node.name for node in self._sources(plan)))
            if any(_messages(plan, _EAGER)):
                own.eager.add(name)
        except Exception as error:  # noqa: BLE001 - it is the user's code.
            fallback = (at.filename, at.line_number or 1)
            own.problems.append(_raised(own.project, name, error, fallback))
        else:
            own.flows.append(replace(flow, func=lambda: frame))
        self._add_flow(name, flow.target, reads, at)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        name = self.definitions.short(flow.name or flow.target)
        self.definitions.flows.append(flow)
        reads = (self.definitions.short(flow.source),)
        self._add_flow(name, flow.target, reads, flow.source_code_location)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        own = self.definitions
        found = tuple(sql.statements(sql_text))
        own.sql_files.append(SqlFile(file_path, sql_text, found))
        shown = own.project.shown(file_path)
        for each in found:
            if each.kind is not None and each.target is not None:
                self._add_node(Node(own.short(each.target), each.kind))
                own.properties[own.short(each.target)] = sql.properties(sql_text, each)
                if (form := sql.format_of(sql_text, each)) is not None:
                    own.formats[own.short(each.target)] = form
            if each.flow is not None and each.target is not None:
                name, target = own.short(each.flow), own.short(each.target)
                reads = tuple(own.short(read) for read in each.reads)
                own.graph.flows[name] = Flow(name, target, reads, shown, each.line)

    def _add_node(self, node: Node) -> None:
        self.definitions.graph.nodes.setdefault(node.name, node)

    def _add_flow(self, name: str, target: str, reads: tuple[str, ...], at: Any) -> None:
        own = self.definitions
        file = own.project.shown(at.filename)
        own.graph.flows[name] = Flow(name, own.short(target), reads, file, at.line_number or 1)

    def _sources(self, plan: Any) -> Iterator[Node]:
        """The datasets and sources in a plan. Names are resolved when all files are loaded."""
        for read in _messages(plan, ("Read",)):
            if read.HasField("named_table"):
                yield Node(self.definitions.short(read.named_table.unparsed_identifier), "")
            elif read.HasField("data_source"):
                yield from self._external(read.data_source.format, read.data_source.options)
        for query in _messages(plan, ("SQL",)):
            for name in sql.reads_of(query.query):
                yield Node(self.definitions.short(name), "")

    def _external(self, name: str, given: Mapping[str, str]) -> Iterator[Node]:
        options = {key.lower(): value for key, value in given.items()}
        self._note_server(name, options)
        value = next((options[key] for key in _SUBSCRIPTIONS if key in options), None)
        topics = value.split(",") if value is not None and "subscribe" in options else [value]
        for topic in topics:
            node = Node(name, SOURCE) if topic is None else Node(f"topic {topic.strip()}", TOPIC)
            self._add_node(node)
            yield node

    def _note_server(self, source: str, options: Mapping[str, str]) -> None:
        if source == "headrace" and _SERVERS in options:
            try:
                settings = security_of(options)
            except ValueError:
                settings = {}  # Spark reports invalid options with the flow that has them.
            self.definitions.servers[options[_SERVERS]] = settings


def _messages(message: Any, wanted: Collection[str]) -> Iterator[Any]:
    """The messages of some types in a plan, at any depth."""
    if message.DESCRIPTOR.name in wanted:
        yield message
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        if descriptor.message_type.GetOptions().map_entry:
            continue
        for each in value if not hasattr(value, "DESCRIPTOR") else (value,):
            yield from _messages(each, wanted)


def _source(function: Callable[..., Any]) -> tuple[str, int]:
    try:
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return "", 1
    return "".join(lines), first_line


def _complete(definitions: Definitions) -> None:
    """Remove names that are not datasets of the pipeline, such as CTEs, from the reads of flows."""
    graph = definitions.graph
    for flow in list(graph.flows.values()):
        known = tuple(name for name in flow.reads if name in graph.nodes)
        graph.flows[flow.name] = replace(flow, reads=known)


def _without_target(definitions: Definitions) -> Iterator[Problem]:
    """Flows whose target is not defined; Spark would run nothing for them."""
    for flow in definitions.graph.flows.values():
        if flow.target not in definitions.graph.nodes:
            message = (
                f"unknown table or sink {flow.target!r}. "
                "Create it with create_streaming_table or create_sink"
            )
            yield Problem(flow.name, flow.file, flow.line, message, message)


def _several_writers(definitions: Definitions, spark: Any) -> Iterator[Problem]:
    """Several flows that write to plain files: Spark would skip micro-batches of all but one.

    The file sink has one log per table, and takes a micro-batch whose number is in the log as
    already written.
    """
    graph = definitions.graph
    for name in [node.name for node in graph.nodes.values() if node.kind == TABLE]:
        flows = [flow for flow in graph.flows.values() if flow.target == name]
        if len(flows) < 2:
            continue
        form = definitions.formats.get(name) or spark.conf.get(FORMAT)
        if form not in FILES:
            continue
        for flow in flows:
            message = (
                f"table {name} has {len(flows)} flows, but Spark can write only one flow to a "
                f"table of format {form}. Use one flow with union() of the queries, or format "
                "iceberg or delta"
            )
            yield Problem(flow.name, flow.file, flow.line, message, message)


@contextmanager
def _in_directory(directory: Path) -> Iterator[None]:
    """Change to a directory, and write no compiled files next to the user's files."""
    before, writes = os.getcwd(), sys.dont_write_bytecode
    os.chdir(directory)
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        os.chdir(before)
        sys.dont_write_bytecode = writes
