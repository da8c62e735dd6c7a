"""Check a project before Spark starts: packages, syntax, names of tables, brokers, topics.

Files are parsed, not executed. Names that are computed at run time are checked by Spark later.

1. PySpark is not imported: all checks together take less than half a second, unless a broker is
   slow. A broker that does not accept a connection within half a second is not checked.
"""

import ast
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from headrace.client import ClientError, connect
from headrace.client.core.options import parse_addresses
from headrace.env.extras import install_command
from headrace.env.java import NotInstalled, find_java
from headrace.pipelines import sql
from headrace.pipelines.project import BOOTSTRAP, Project, ProjectError
from headrace.pipelines.security import client_settings
from headrace.spark import versions

_REACH_TIMEOUT_S = 0.5
_TOPICS_TIMEOUT_MS = 10_000.0
_PACKAGES = ("grpc", "grpc_status", "numpy", "pandas", "pyarrow", "zstandard")
_DECORATORS = ("table", "materialized_view", "temporary_view")
_CALLS = ("create_streaming_table", "create_sink")


@dataclass
class Scan:
    """The names in the files of a project, as far as their text contains them."""

    names: set[str] = field(default_factory=set)
    """Tables, views and sinks."""
    topics: set[str] = field(default_factory=set)
    """Topics that are read."""
    has_all_names: bool = True
    uses_bootstrap: bool = False
    constants: dict[str, str] = field(default_factory=dict)
    """Strings that the current file assigns to names at its top level."""


def check(
    project: Project,
    configuration: Mapping[str, str],
    *,
    full_refresh: Iterable[str] = (),
    reaches_brokers: bool = True,
) -> None:
    """Raise ProjectError for the first problem."""
    found = scan(project)
    for name in full_refresh:
        short = name.rpartition(".")[2]
        if found.has_all_names and short not in found.names:
            known = ", ".join(sorted(found.names)) or "none"
            raise ProjectError(f"unknown table {name!r} in --full-refresh. Known: {known}")
    if found.uses_bootstrap and reaches_brokers:
        address = configuration[BOOTSTRAP]
        _check_reachable(address)
        _check_topics(address, found.topics, configuration)


def check_packages(*, starts_spark: bool) -> versions.Version:
    """The version of PySpark. Raise ProjectError if a package, PySpark or Java is unsuitable."""
    since, until = versions.PIPELINES_SINCE, versions.NEWEST
    try:
        version = versions.check(
            versions.installed(), "headrace pipeline", "pipelines", since, until
        )
        missing = [name for name in _PACKAGES if find_spec(name) is None]
        if missing:
            raise ProjectError(
                f"headrace pipeline requires {missing[0]}, which is not installed. "
                f"Run: {install_command('pipelines')}"
            )
        if starts_spark:
            find_java("Spark", extra="spark")
    except (versions.UnsupportedPySpark, NotInstalled) as error:
        raise ProjectError(str(error)) from None
    return version


def scan(project: Project) -> Scan:
    found = Scan()
    for path in project.files():
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".sql":
            targets = [each.target for each in sql.statements(text) if each.kind is not None]
            found.names |= {name.rpartition(".")[2] for name in targets if name is not None}
        elif path.suffix == ".py":
            found.uses_bootstrap |= BOOTSTRAP in text
            _scan_python(project, path, text, found)
    return found


def _scan_python(project: Project, path: Path, text: str, found: Scan) -> None:
    try:
        tree = ast.parse(text, str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or str(error)
        raise ProjectError(f"{project.shown(path)}:{line}: invalid Python: {reason}") from error
    found.constants = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                _note_decorator(node.name, decorator, found)
        elif isinstance(node, ast.Call):
            _note_call(node, found)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.has_all_names &= not any(_project_modules(node, project))


def _constants(tree: ast.Module) -> dict[str, str]:
    """Names that are assigned once, with a string."""
    names = [
        name.id
        for node in ast.walk(tree)
        for name in (node.targets if isinstance(node, ast.Assign) else ())
        if isinstance(name, ast.Name)
    ]
    return {
        node.targets[0].id: text
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and (text := _text(node.value)) is not None
        and names.count(node.targets[0].id) == 1
    }


def _project_modules(node: ast.Import | ast.ImportFrom, project: Project) -> Iterator[str]:
    """Imported modules that belong to the project: they can also define tables."""
    modules = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module]
    for module in modules:
        name = (module or "").partition(".")[0]
        if (project.directory / name).is_dir() or (project.directory / f"{name}.py").is_file():
            yield name


def _note_decorator(function: str, decorator: ast.expr, found: Scan) -> None:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if _last(called) not in _DECORATORS:
        return
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    named = [each.value for each in keywords if each.arg == "name"]
    _note_name(named[0] if named else ast.Constant(function), found)


def _note_call(node: ast.Call, found: Scan) -> None:
    name = _last(node.func)
    if name in _CALLS:
        named = [each.value for each in node.keywords if each.arg == "name"] + node.args[:1]
        _note_name(named[0] if named else None, found)
    elif name == "option" and len(node.args) == 2 and _text(node.args[0]) == "subscribe":
        _note_topics(node.args[1], found)
    elif name == "options":
        for each in node.keywords:
            if each.arg == "subscribe":
                _note_topics(each.value, found)


def _note_name(value: ast.expr | None, found: Scan) -> None:
    name = _text(value)
    if name is None:
        found.has_all_names = False
    else:
        found.names.add(name.rpartition(".")[2])


def _note_topics(value: ast.expr, found: Scan) -> None:
    text = found.constants.get(value.id) if isinstance(value, ast.Name) else _text(value)
    found.topics |= {topic.strip() for topic in (text or "").split(",") if topic.strip()}


def _last(called: ast.expr) -> str | None:
    """The last part of a dotted name."""
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else None


def _text(value: ast.expr | None) -> str | None:
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return str(value.value) if is_text and isinstance(value, ast.Constant) else None


def _check_reachable(addresses: str) -> None:
    errors = []
    try:
        parsed = parse_addresses(addresses)
    except ValueError as error:
        raise ProjectError(f"invalid bootstrap servers: {error}") from None
    for address in parsed:
        try:
            socket.create_connection((address.host, address.port), _REACH_TIMEOUT_S).close()
        except TimeoutError:
            return
        except OSError as error:
            errors.append(error)
        else:
            return
    raise ProjectError(
        f"no broker responds at {addresses}, which this pipeline reads or writes: {errors[0]}. "
        "Start it and run again; every flow resumes where it stopped"
    )


def _check_topics(address: str, topics: Iterable[str], configuration: Mapping[str, str]) -> None:
    try:
        settings = client_settings(configuration)
    except ValueError as error:
        raise ProjectError(f"invalid security settings of the project: {error}") from None
    try:
        with connect(address, operation_timeout_ms=_TOPICS_TIMEOUT_MS, **settings) as client:
            known = client.list_topics()
    except (ClientError, ValueError):
        return
    missing = sorted(set(topics) - known.keys())
    if missing:
        raise ProjectError(
            f"topic {missing[0]} does not exist at {address}. "
            f"Create it: headrace topics create {missing[0]}"
        )
