"""Every command, file and link in README, CONTRIBUTING and docs/ exists.

The tests parse each `headrace` command with the real argument parser and run nothing.
docs/CLI.md is generated from the parser, so its usage lines are not parsed again.
"""

import argparse
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.cli.main import COMMANDS, command_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN_PAGES = [page for page in PAGES if page.name != "CLI.md"]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
CALL = re.compile(r"(?:^|[|&;(]|\b(?:until|do|then|if|while|exec|\w+=\S*)\s|/)\s*headrace (.*)")
OPERATORS = {"|", "||", "&", "&&", ";", ">", ">>", "<", ")", "2>>", "2>", "|| true"}
PLACEHOLDER = re.compile(r"^\[?[A-Z][A-Z]*\]?$")


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


def shell_blocks(text: str) -> Iterator[str]:
    """The blocks of shell commands: indented ones, and those marked sh."""
    for kind, block in FENCED.findall(text):
        if kind == "sh":
            yield block
    for block in INDENTED.findall(FENCED.sub("", text)):
        yield re.sub(r"^    (?:\$ )?", "", block, flags=re.MULTILINE)


def command_lines(text: str) -> Iterator[str]:
    """The arguments of each `headrace` call in a block."""
    for block in shell_blocks(text):
        joined = block.replace("\\\n", " ")
        for line in joined.splitlines():
            if found := CALL.search(re.sub(r"^\$ ", "", line)):
                yield found[1]


def inline_commands(text: str) -> Iterator[str]:
    return iter(re.findall(r"`headrace ([^`]+)`", FENCED.sub("", text)))


def words(line: str) -> list[str]:
    """The arguments up to the first shell operator, with a number for each placeholder."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    found: list[str] = []
    for word in lexer:
        if word in OPERATORS:
            break
        if word != "...":
            found.append(word)
    return ["1" if PLACEHOLDER.match(word) else word for word in found]


def problem(line: str, *, is_complete: bool, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The error of the parser, or None. An incomplete command may lack required arguments."""
    name, *arguments = words(line)
    if name.startswith("-") or name == "1":  # `headrace --version`, `headrace COMMAND --help`
        return None
    if name not in COMMANDS:
        return f"unknown command {name}"
    errors: list[str] = []

    def fail(_: argparse.ArgumentParser, message: str) -> None:
        errors.append(message)
        raise SystemExit(2)

    with monkeypatch.context() as patch:
        patch.setattr("headrace.cli.parser.Parser.error", fail)
        patch.setattr(argparse.ArgumentParser, "print_help", lambda _: None)
        with suppress(SystemExit):
            command_parser(name).parse_args(arguments)
    # A capital word stands for a value that the parser can reject, such as SHELL.
    accepted = ["invalid choice: '1'"]
    if not is_complete:
        accepted += ["required", "expected one argument"]
    return next((each for each in errors if not any(text in each for text in accepted)), None)


@pytest.mark.parametrize("name", names(WRITTEN_PAGES))
def test_headrace_commands_parse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    calls = [(line, True) for line in command_lines(text)]
    calls += [(line, False) for line in inline_commands(text)]
    errors = {
        line: found
        for line, is_complete in calls
        if (found := problem(line, is_complete=is_complete, monkeypatch=monkeypatch))
    }
    assert errors == {}


def test_checker_finds_stale_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "    $ headrace topics remove river\n\n```sh\nheadrace up --broker 3 &\n```\n"
    assert len(list(command_lines(text))) == 2
    for line in command_lines(text):
        assert problem(line, is_complete=True, monkeypatch=monkeypatch)
    assert problem("topics create", is_complete=True, monkeypatch=monkeypatch)
    assert problem("topics create", is_complete=False, monkeypatch=monkeypatch) is None


def test_readme_and_operations_have_commands_to_check() -> None:
    for name in ("README.md", "docs/OPERATIONS.md", "docs/SECURITY.md", "docs/ZOOKEEPER.md"):
        assert list(command_lines((ROOT / name).read_text())), name


@pytest.mark.parametrize("name", names(PAGES))
def test_make_targets_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    text = (ROOT / name).read_text(encoding="utf-8")
    used = re.findall(r"(?:`|^    (?:\$ )?|^)make ([a-z][a-z-]*)\b(?![ ,]+[a-z]+ )", text, re.M)
    assert sorted(set(used) - targets) == []


@pytest.mark.parametrize("name", names(PAGES))
def test_python_modules_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    modules = set(re.findall(r"python -m ([a-z_]+(?:\.[a-z_]+)*)", text))
    assert [module for module in sorted(modules) if not is_module(module)] == []


def is_module(name: str) -> bool:
    path = name.replace(".", "/")
    here = (ROOT / f"{path}.py", ROOT / path / "__main__.py", ROOT / "src" / path / "__main__.py")
    return any(each.exists() for each in here) or find_spec(name) is not None


@pytest.mark.parametrize("name", names(PAGES))
def test_named_test_files_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    used = re.findall(r"(?:pytest |`)((?:tests|bench|examples|docs)/[\w/]*\w\.\w+)", text)
    assert [path for path in used if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", names(PAGES))
def test_links_and_their_anchors_exist(name: str) -> None:
    page = ROOT / name
    missing = []
    for target in re.findall(r"\]\(([^):\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            missing.append(target)
    assert missing == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
