"""Collaborators are constructor arguments: no module assigns a callable of another object.

docs/ARCHITECTURE.md states the rule. `lint-imports` checks the direction of imports.
"""

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

SOURCES = Path(__file__).resolve().parents[2] / "src"


def callables(tree: ast.AST) -> set[str]:
    """The names of attributes that a class declares as callables, or takes as such arguments."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names |= {
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign)
                and isinstance(each.target, ast.Name)
                and "Callable" in ast.unparse(each.annotation)
            }
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            names |= _arguments(node)
    return names


def _arguments(function: ast.FunctionDef) -> set[str]:
    arguments = {
        each.arg
        for each in (*function.args.args, *function.args.kwonlyargs)
        if each.annotation is not None and "Callable" in ast.unparse(each.annotation)
    }
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and "Callable" in ast.unparse(node.annotation):
            names |= _attribute_names([node.target])
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Name)
            and node.value.id in arguments
        ):
            names |= _attribute_names(node.targets)
    return names


def flags(tree: ast.AST) -> set[str]:
    """The names of attributes that hold True or False in some class."""
    assigned = (each for each in ast.walk(tree) if isinstance(each, ast.Assign))
    targets = (each.targets for each in assigned if _is_flag(each.value))
    return set[str]().union(*(_attribute_names(each) for each in targets))


def _is_flag(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, bool)


def _attribute_names(targets: list[ast.expr]) -> set[str]:
    return {each.attr for each in targets if isinstance(each, ast.Attribute)}


def patched(tree: ast.AST, names: set[str]) -> list[str]:
    """The assignments to these attributes of other objects than `self`."""
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
        and target.attr in names
        and not (isinstance(target.value, ast.Name) and target.value.id == "self")
    ]


def test_no_callable_is_patched_into_another_object() -> None:
    paths = SOURCES.rglob("*.py")
    trees = {str(path.relative_to(SOURCES)): ast.parse(path.read_text()) for path in paths}
    names = set[str]().union(*(callables(tree) for tree in trees.values()))
    names -= set[str]().union(*(flags(tree) for tree in trees.values()))
    assert {"send_responses", "check_isr", "choose", "opened", "_serve"} <= names
    found = {path: patched(tree, names) for path, tree in trees.items()}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_callable_that_is_patched_in_is_found() -> None:
    class_ = "class A:\n    def __init__(self, call: 'Callable[[], None]') -> None:\n"
    tree = ast.parse(class_ + "        self.call = call\ndef wire(a, b):\n    a.call = b.run\n")
    assert patched(tree, callables(tree)) == ["5: a.call = b.run"]
