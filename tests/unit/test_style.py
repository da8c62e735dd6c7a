"""Rules of style that a test can check: sizes, names, and imports of pure modules."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

# The first of these to run parses every file, on a machine that may be busy.
pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80
PARAMETERS_MAX = 8
"""Positional parameters, besides `self`."""
ATTRIBUTES_MAX = 25
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
PURE_PACKAGES = {"model", "wire", "record", "config", "security"}
# All other modules of the client are pure.
CLIENT_IO_MODULES = {"aio", "blocking", "properties", "sockets"}
IMPURE_MODULES = {
    "asyncio",
    "multiprocessing",
    "os",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}
SAYS_PURE = re.compile(r"\bPure\b|\b[Dd]oes no I/O\b")
IMPURE_CALLS = {"now", "today", "utcnow", "uuid1", "uuid4", "open"}

ENV_PACKAGES = {
    "audit",
    "cluster",
    "controller",
    "coordinator",
    "group",
    "handlers",
    "log",
    "replication",
    "requests",
    *PURE_PACKAGES,
}
WITHOUT_ENV = {
    # This module runs in the child process that compacts segments.
    "src/headrace/log/compaction/cleaner_process.py": {
        "os._exit",
        "os.getppid",
        "os.nice",
        "os.utime",
        "os.write",
        "select",
        "signal",
        "time",
    },
    "src/headrace/handlers/describe_log_dirs.py": {"os.statvfs"},
}
"""Uses of the operating system that tests need not control."""

SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
ALL = [*SOURCES, *TESTS, *sorted((ROOT / "bench").rglob("*.py"))]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_pure(path: Path) -> bool:
    docstring = ast.get_docstring(parsed(path)) or ""
    if path.stem.endswith("machine") or SAYS_PURE.search(docstring):
        return True
    project, package = path.relative_to(ROOT / "src").parts[:2]
    if project != "headrace":
        return False
    if package == "client":
        return not CLIENT_IO_MODULES & {path.parent.name, path.stem}
    return package in PURE_PACKAGES


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def impure_uses(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
            # A random generator is an argument: its type may be named, the module not used.
            yield from names & (IMPURE_MODULES | {"random"})
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            module = str(node.module).partition(".")[0]
            names = {alias.name for alias in node.names}
            if module in IMPURE_MODULES or (module == "random" and names != {"Random"}):
                yield module
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in IMPURE_CALLS and not _is_own_method(called):
                yield f"{name}()"


def _is_own_method(called: ast.expr) -> bool:
    if not isinstance(called, ast.Attribute):
        return False
    owner = called.value
    return not (isinstance(owner, ast.Name) and owner.id in {"datetime", "date", "uuid", "io"})


def test_module_has_few_lines() -> None:
    lengths = {named(path): path.read_text().count("\n") for path in ALL}
    assert {name: length for name, length in lengths.items() if length > MODULE_LINES_MAX} == {}


def test_function_has_few_lines() -> None:
    long = {
        f"{named(path)} {function.name}": lines
        for path in ALL
        for function in functions(parsed(path))
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert long == {}


def _attributes(node: ast.ClassDef) -> set[str]:
    assigned = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and ast.unparse(each.value) == "self"
    }
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return assigned | declared


def test_class_has_few_attributes() -> None:
    counts: dict[str, int] = {}
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                # Several classes can have the same name.
                counts[node.name] = max(counts.get(node.name, 0), len(_attributes(node)))
    assert {name: count for name, count in counts.items() if count > ATTRIBUTES_MAX} == {}


def _positional_count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_function_has_few_positional_parameters() -> None:
    above = {
        f"{named(path)} {function.name}": count
        for path in SOURCES
        for function in functions(parsed(path))
        if (count := _positional_count(function)) > PARAMETERS_MAX
    }
    assert above == {}


def test_module_has_a_docstring() -> None:
    assert [named(path) for path in ALL if not ast.get_docstring(parsed(path))] == []


def test_module_names_contain_no_empty_word() -> None:
    empty = [named(path) for path in ALL if EMPTY_WORDS & {path.parent.name, *path.stem.split("_")}]
    assert empty == []


def test_unit_tests_have_the_folders_of_the_packages() -> None:
    folders = {path.name for path in (ROOT / "tests" / "unit").iterdir() if path.is_dir()}
    packages = {path.parent.name for path in (ROOT / "src" / "headrace").glob("*/__init__.py")}
    assert folders - {"__pycache__"} - packages == set()


def test_modules_that_support_unit_tests_are_called_scenario() -> None:
    names = {path.stem for path in (ROOT / "tests" / "unit").rglob("*.py")}
    assert {each for each in names if not each.startswith("test_")} == {
        each for each in names if each.endswith("_scenario")
    }


def test_pure_module_uses_no_clock_no_randomness_and_no_operating_system() -> None:
    pure = [path for path in SOURCES if is_pure(path)]
    assert len(pure) > 20
    found = {named(path): set(impure_uses(parsed(path))) for path in pure}
    assert {name: uses for name, uses in found.items() if uses} == {}


def operating_system_uses(tree: ast.Module) -> Iterator[str]:
    """Uses of files, clocks, sockets and processes that do not go through `env`."""
    for use in impure_uses(tree):
        if use not in {"os", "asyncio", "secrets", "threading", "uuid4()"}:
            yield use
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and ast.unparse(node.value) == "os"
            and node.attr not in {"getpid", "path", "strerror", "urandom"}
        ):
            yield f"os.{node.attr}"


def test_packages_use_files_and_clocks_only_through_env() -> None:
    """docs/ARCHITECTURE.md promises it, so that the simulator controls both."""
    paths = [path for path in SOURCES if path.relative_to(ROOT / "src").parts[1] in ENV_PACKAGES]
    found = {named(path): set(operating_system_uses(parsed(path))) for path in paths}
    assert {name: uses for name, uses in found.items() if uses} == WITHOUT_ENV


def test_loggers_have_the_name_of_their_module() -> None:
    others = [
        f"{named(path)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "getLogger"
        and [ast.unparse(each) for each in node.args] != ["__name__"]
    ]
    assert others == []


def test_tests_wait_for_conditions_and_never_sleep() -> None:
    asleep = [
        f"{named(path)}:{node.lineno}"
        for path in TESTS
        for function in functions(parsed(path))
        if function.name.startswith("test_")
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ]
    assert asleep == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time", {"time"}),
        ("import os.path", {"os"}),
        ("from random import random", {"random"}),
        ("from random import Random", set()),
        ("from asyncio import sleep", {"asyncio"}),
        ("from datetime import datetime\ndatetime.now()", {"now()"}),
        ("self.clock.now()", set()),
        ("open('x')", {"open()"}),
    ],
)
def test_impure_uses_are_found(source: str, found: set[str]) -> None:
    assert set(impure_uses(ast.parse(source))) == found


def test_hot_modules_reuse_no_name_of_a_caught_exception() -> None:
    """mypyc gives a local one type. If the exception has another, `except` raises TypeError."""
    reused = {
        f"{named(path)} {function.name}": caught & bound
        for path in SOURCES
        if "# HOT" in path.read_text().partition("\n")[0]
        for function in functions(parsed(path))
        if (caught := {node.name for node in ast.walk(function) if _is_named_handler(node)})
        and (bound := {node.id for node in ast.walk(function) if _is_assigned_name(node)})
        and caught & bound
    }
    assert reused == {}


def _is_named_handler(node: ast.AST) -> TypeGuard[ast.ExceptHandler]:
    return isinstance(node, ast.ExceptHandler) and node.name is not None


def _is_assigned_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
