"""The state of a log has owners: no other module assigns their fields or changes their lists."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LOG = Path(__file__).resolve().parents[3] / "src" / "headrace" / "log"
OWNERS = {
    "Log": LOG / "log.py",
    "SegmentList": LOG / "segment_list.py",
    "DurableState": LOG / "durable_state.py",
    "PageDrops": LOG / "page_drops.py",
}
PATHS = {"log", "self._log", "run.log"}
PARTS = {"durable", "segments", "page_drops"}
CHANGES = {"append", "clear", "extend", "insert", "pop", "remove", "sort", "update"}


def fields(owner: str) -> set[str]:
    tree = ast.parse(OWNERS[owner].read_text())
    (node,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == owner)
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    }


def is_part_of_a_log(node: ast.expr) -> bool:
    """Whether an expression is a log, or one of the owners of its state."""
    if isinstance(node, ast.Attribute) and node.attr in PARTS:
        node = node.value
    return ast.unparse(node) in PATHS or ast.unparse(node) == "durable"


def changed(tree: ast.Module, names: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        target: ast.expr | None = None
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            target = node.value if isinstance(node, ast.Subscript) else node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            target = node.func.value if node.func.attr in CHANGES else None
        if (
            isinstance(target, ast.Attribute)
            and target.attr in names - PARTS - {"files"}
            and is_part_of_a_log(target.value)
        ):
            yield f"{target.lineno}: {ast.unparse(node)}"


def test_only_its_owner_changes_the_state_of_a_log() -> None:
    names = set[str]().union(*map(fields, OWNERS))
    assert {"log_end_offset", "recovery_point", "base_offsets", "uncovered"} <= names
    others = [path for path in LOG.parent.rglob("*.py") if path not in OWNERS.values()]
    found = {str(path): list(changed(ast.parse(path.read_text()), names)) for path in others}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "log.log_end_offset = 5",
        "self._log.durable.recovery_point += 1",
        "durable.uncovered.append(segment)",
        "del log.segments.all[:1]",
        "log.segments.base_offsets[0] = 3",
    ],
)
def test_a_change_by_another_module_is_found(source: str) -> None:
    names = set[str]().union(*map(fields, OWNERS))
    assert list(changed(ast.parse(source), names)) != []
