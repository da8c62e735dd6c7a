"""Texts, comments, docstrings and names contain none of the words that the project replaces.

Strings for users and names of variables have stricter lists than comments and docstrings.
"""

import ast
import re
import tokenize
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
REPLACED = re.compile(
    r"\b(?:nobody|somebody|everybody|anybody|whoever|goes on|went on|hears? of|anew|any more|"
    r"at once|by itself|of its own|for ever|under way|given up|left out|one after the other|"
    r"there is no|let in|meanwhile|not built|vouch(?:es)? for|dials?|(?:is|are|was|were) told|"
    r"(?:who|what) (?:comes|came))\b",
    re.IGNORECASE,
)
REPLACED_IN_STRINGS = re.compile(
    r"\b(?:answer(?:s|ed)?|asks|asked|(?:is|are) no (?!longer\b)|(?:is|are) there|leave it out|"
    r"go on|going on|made again|as (?:it|they) came|gone|lies|tells?|told|says?|comes?|came|goes|"
    r"trouble|died|dies|beside)\b",
    re.IGNORECASE,
)
"""More words, which strings for users do not contain."""
REPLACED_IN_NAMES = re.compile(r"\b(?:told|said|asks|asked|gone)\b", re.IGNORECASE)
TOOLS = [
    ROOT / "setup.py",
    ROOT / "docs" / "generate.py",
    *(
        path
        for folder in ("bench", "demo", "examples", "release", "tools")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ),
]
"""The Python files outside of `src` and `tests`. They have no replaced words."""


def count(text: str) -> int:
    return len(REPLACED.findall(text))


def docstrings(tree: ast.Module) -> set[int]:
    """The nodes of all docstrings, also those of attributes."""
    bodies = (each.body for each in ast.walk(tree) if hasattr(each, "body") and each.body)
    return {
        id(each.value)
        for body in bodies
        if isinstance(body, list)
        for each in body
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
    }


def strings(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    hidden = docstrings(tree)
    return [
        each.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in hidden
    ]


def identifiers(path: Path) -> list[str]:
    """The names of variables, attributes, parameters and classes as words."""
    names: set[str] = set()
    for each in ast.walk(ast.parse(path.read_text())):
        if isinstance(each, ast.Name):
            names.add(each.id)
        elif isinstance(each, ast.Attribute):
            names.add(each.attr)
        elif isinstance(each, ast.arg):
            names.add(each.arg)
        elif isinstance(each, ast.ClassDef):
            names.add(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", each.name))
    return [name.replace("_", " ") for name in sorted(names)]


def prose(path: Path) -> str:
    """The comments and docstrings of a file, and its function names as words."""
    tree = ast.parse(path.read_text())
    hidden = docstrings(tree)
    texts = [
        str(each.value)
        for each in ast.walk(tree)
        if isinstance(each, ast.Constant) and id(each) in hidden
    ]
    texts += [
        str(getattr(each, "name", "")).replace("_", " ")
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    with tokenize.open(path) as file:
        texts += [
            each.string
            for each in tokenize.generate_tokens(file.readline)
            if each.type == tokenize.COMMENT
        ]
    return "\n".join(texts)


def test_pages_for_users_have_no_replaced_words() -> None:
    files = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")
    folders = ("docs/*.md", ".ci/*", "bench/*.java")
    pages = [ROOT / name for name in files]
    pages += [path for pattern in folders for path in sorted(ROOT.glob(pattern))]
    counts = {str(page.relative_to(ROOT)): count(page.read_text()) for page in pages}
    assert {name: n for name, n in counts.items() if n} == {}


def test_strings_for_users_have_no_replaced_words() -> None:
    files = [*sorted((ROOT / "src").rglob("*.py")), *TOOLS]
    found = [
        text
        for path in files
        for text in strings(path)
        if count(text) or (" " in text.strip() and REPLACED_IN_STRINGS.search(text))
    ]
    assert found == []


@pytest.mark.parametrize("folder", ["src", "tests", "tools"])
def test_comments_and_functions_have_no_replaced_words(folder: str) -> None:
    paths = TOOLS if folder == "tools" else sorted((ROOT / folder).rglob("*.py"))
    found = {str(path.relative_to(ROOT)): REPLACED.findall(prose(path)) for path in paths}
    assert {name: words for name, words in found.items() if words} == {}


def test_variables_of_tools_have_no_replaced_words() -> None:
    names = {str(path.relative_to(ROOT)): identifiers(path) for path in TOOLS}
    assert [
        (path, name)
        for path, listed in names.items()
        for name in listed
        if count(name) or REPLACED_IN_NAMES.search(name)
    ] == []
