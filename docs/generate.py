"""Writes docs/CLI.md and the generated parts of other pages in docs/.

Text between a pair of marks is generated, the rest is written by hand. With --check nothing is
written: the exit code is 1 if a page is out of date.
"""

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from headrace.cli.main import COMMANDS
from headrace.client.core import options as client_options
from headrace.config.features import MISSING
from headrace.config.group import GROUP_SETTINGS
from headrace.config.setting import LIST, Setting, render
from headrace.config.table import TOPIC_SETTINGS, broker_settings
from headrace.wire.apis import APIS, Api

CLI_PAGE = Path(__file__).with_name("CLI.md")
PACKAGE = Path(__file__).parents[1] / "src" / "headrace"
HANDLERS = PACKAGE / "handlers"

CLI_HEAD = """# Command line

This page lists all commands and options. `headrace COMMAND --help` and
`headrace COMMAND ACTION --help` print the same text. `make docs` generates this page from the code.

**Address.** Commands that connect to a cluster take `--bootstrap-server HOST:PORT`: one broker, or
several brokers separated by commas. Without this option, a command uses the first of these that is
set:

1. the environment variable `HEADRACE_BOOTSTRAP`
2. the address in the pipeline project (`headrace pipeline` only)
3. `localhost:9092`

**Login.** `--config FILE` names a properties file with the user, the password and the settings of
TLS. The settings have the names of Kafka's clients ([SECURITY.md](SECURITY.md#users)). The default
is the environment variable `HEADRACE_CONFIG`.

**Exit codes:**

| code | meaning |
| --- | --- |
| 0 | success |
| 1 | failure; the broker is not running (`status`); a file has a problem (`log check`) |
| 2 | wrong usage |
| 130 | Ctrl-C; but 0 for `up`, `broker` and `zookeeper` in the foreground, which stop cleanly |
| 141 | the reader of the output closed the pipe |

`headrace pipeline run` and `dry-run` have [further exit codes](PIPELINES.md#from-a-scheduler).
"""

_IN_CLI_HEAD = {"--bootstrap-server", "--command-config", "--config"}
USAGE_COLUMNS = 100
_FOREVER = str(2**63 - 1)
_UNLIMITED = str(2**31 - 1)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _docstring(api: Api) -> str:
    path = HANDLERS / f"{api.schema}.py"
    if not path.exists():
        return ""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _purpose(api: Api) -> str:
    """The text after the name and the versions, in the first line of the handler."""
    first_line = re.sub(r"# HOT|\(G\d+\)", "", _docstring(api).split("\n")[0])
    found = re.search(r"[:;] (.*)", first_line)
    return found[1].strip().rstrip(". ") if found else ""


def _versions(api: Api) -> str:
    if api.version_min == api.version_max:
        return str(api.version_max)
    return f"{api.version_min}-{api.version_max}"


def _gaps(api: Api) -> str:
    """The text after "Gaps:" in the handler's docstring, up to the end of the paragraph."""
    found = re.search(r"Gaps: (.*?)(?:\n\n|\Z)", _docstring(api), re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def _apis() -> str:
    rows = [
        (str(api.key), api.name, _versions(api), _purpose(api)) for api in sorted(APIS.values())
    ]
    return _table(("key", "API", "versions", "purpose"), rows)


def _permissions() -> str:
    found = [
        (
            api.name,
            re.search(r"^- Requires: (.*?)(?=\n- )", _docstring(api), re.DOTALL | re.MULTILINE),
        )
        for api in sorted(APIS.values())
    ]
    rows = [(name, " ".join(text[1].split()).rstrip(".")) for name, text in found if text]
    return _table(("API", "required permission"), rows)


def _api_gaps() -> str:
    gaps = [(api.name, _gaps(api)) for api in sorted(APIS.values())]
    return "\n".join(f"- **{name}**: {gap}" for name, gap in gaps if gap)


def _default(row: Setting) -> str:
    text = render(row.default_value)
    if text is None:
        return "-"
    if text in (_FOREVER, _UNLIMITED):
        return "unlimited"
    if not text:
        return "(empty)"
    # A list is shown as one word that a browser may break.
    return f"`{text}`".replace(",", ", ") if row.kind is LIST else f"`{text}`"


def _meaning(row: Setting) -> str:
    # The rest repeats what the topic's own row says.
    return re.sub(r"^(The default of \S+ for topics\.) .*", r"\1", row.doc)


def _settings(rows: Iterable[Setting], *, tells_dynamic: bool) -> str:
    head = ("setting", "type", "default", "meaning")
    lines = [
        (
            f"`{row.name}`" + (" *" if tells_dynamic and row.is_dynamic else ""),
            row.kind.name.lower(),
            _default(row),
            _meaning(row).replace("|", "\\|"),
        )
        for row in rows
    ]
    return _table(head, lines)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _idle(rows: Iterable[Setting]) -> str:
    """Names without effect, by the reason."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.needs, []).append(f"`{row.name}`")
    return "\n".join(
        f"- {_sentence(MISSING[feature])}: {', '.join(sorted(members))}."
        for feature, members in sorted(names.items())
    )


def _topic_settings() -> str:
    return _settings((r for r in TOPIC_SETTINGS.values() if r.has_effect), tells_dynamic=False)


def _idle_topic_settings() -> str:
    return _idle(r for r in TOPIC_SETTINGS.values() if not r.has_effect)


def _group_settings() -> str:
    return _settings(GROUP_SETTINGS.values(), tells_dynamic=False)


def _is_own(row: Setting) -> bool:
    return row.name.startswith("headrace.")


def _broker_settings() -> str:
    rows = [r for r in broker_settings().values() if r.has_effect and not _is_own(r)]
    return _settings(rows, tells_dynamic=True)


def _own_settings() -> str:
    return _settings((r for r in broker_settings().values() if _is_own(r)), tells_dynamic=True)


def _idle_broker_settings() -> str:
    return _idle(r for r in broker_settings().values() if not r.has_effect)


def _other_defaults() -> str:
    rows = [
        (f"`{row.name}`", _default(row), row.kafka_default)
        for row in broker_settings().values()
        if row.kafka_default is not None
    ]
    return _table(("setting", "Headrace", "Apache Kafka"), rows)


def _client_options(name: str) -> str:
    """The fields of a class in client/core/options.py, with their defaults and docstrings."""
    tree = ast.parse(Path(client_options.__file__).read_text(encoding="utf-8"))
    (found,) = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name]
    defaults = {field.name: field.default for field in fields(getattr(client_options, name))}
    rows = [
        (f"`{field.target.id}`", _client_default(defaults[field.target.id]), str(text.value.value))
        for field, text in pairwise(found.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    ]
    return _table(("option", "default", "meaning"), rows)


def _client_default(value: object) -> str:
    if isinstance(value, tuple):
        return f"`{value!r}`"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _modules() -> str:
    packages = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))
    return "\n".join(map(_module_list, packages))


def _module_list(package: Path) -> str:
    rows = [
        f"- `{path.relative_to(PACKAGE)}`: {_first_sentence(path)}"
        for path in sorted(package.rglob("*.py"))
        if path.name != "__init__.py" and "shop" not in path.parts
    ]
    summary = f"<summary>{package.name}: {len(rows)} modules</summary>"
    return "\n".join(("<details>", summary, "", *rows, "", "</details>", ""))


def _first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.replace("# HOT", "").split("\n\n")[0].replace("\n", " ").strip()


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "APIS.md": {"apis": _apis, "permissions": _permissions},
    "ARCHITECTURE.md": {"modules": _modules},
    "CLIENT.md": {
        "client-options": partial(_client_options, "ClientOptions"),
        "producer-options": partial(_client_options, "ProducerOptions"),
        "consumer-options": partial(_client_options, "ConsumerOptions"),
        "group-options": partial(_client_options, "GroupOptions"),
    },
    "COMPATIBILITY.md": {"api-gaps": _api_gaps},
    "SETTINGS.md": {
        "topic-settings": _topic_settings,
        "topic-settings-without-effect": _idle_topic_settings,
        "group-settings": _group_settings,
        "broker-settings": _broker_settings,
        "own-settings": _own_settings,
        "other-defaults": _other_defaults,
        "broker-settings-without-effect": _idle_broker_settings,
    },
}


def generate(path: Path, parts: dict[str, Callable[[], str]]) -> str:
    """Return the page with its parts generated again."""
    page = path.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        head, found_begin, rest = page.partition(begin)
        _, found_end, tail = rest.partition(end)
        if not found_begin or not found_end:
            raise SystemExit(f"{path.name} lacks the marks of {name}. Add {begin} and {end}.")
        page = f"{head}{begin}\n{part()}\n{end}{tail}"
    return page


def cli_page() -> str:
    return CLI_HEAD + "".join(f"\n{section}" for section in _commands())


def _commands() -> Iterator[str]:
    for name, command in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"headrace {name}", add_help=False)
        getattr(import_module(command.module), command.add_arguments)(parser)
        yield f"## headrace {name}\n\n{_sentence(command.summary)}.\n"
        if not _nested(parser):
            yield _usage(parser)
        yield from _arguments(parser)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    nested = _nested(parser)
    shown = [
        action
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        and not _IN_CLI_HEAD & {*action.option_strings}
        and not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    ]
    # Positional arguments first.
    shown.sort(key=lambda action: bool(action.option_strings))
    rows = [f"| {_argument_name(action)} | {_help_text(action.help)} |" for action in shown]
    if rows:
        yield "\n".join(("| argument | meaning |", "| --- | --- |", *rows)) + "\n"
    for summary, child in nested:
        yield f"### {child.prog}\n\n{_sentence(summary)}.\n"
        yield _usage(child)
        yield from _arguments(child)


def _usage(parser: argparse.ArgumentParser) -> str:
    """The usage as a block of code, without --help, and broken between arguments only."""
    words = " ".join(parser.format_usage().split()).removeprefix("usage: ").replace("[-h] ", "")
    joined = re.sub(
        r"\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]", lambda m: m[0].replace(" ", "~"), words
    )
    lines = textwrap.wrap(
        joined,
        USAGE_COLUMNS,
        initial_indent="    ",
        subsequent_indent="        ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("~", " ") + "\n"


def _nested(parser: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            return [(helps.get(name, ""), child) for name, child in action.choices.items()]
    return []


def _argument_name(action: argparse.Action) -> str:
    shown = action.dest.upper()
    if action.metavar is not None:
        shown = str(action.metavar)
    elif action.choices is not None:
        shown = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return f"`{shown}`"
    option = ", ".join(action.option_strings)
    return f"`{option}`" if action.nargs == 0 else f"`{option} {shown}`"


def _help_text(text: str | None) -> str:
    return (text or "").replace("%%", "%").replace("|", "\\|").replace("\n", " ")


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: python docs/generate.py [--check]", file=sys.stderr)
        return 2
    docs = Path(__file__).parent
    pages = {docs / name: generate(docs / name, parts) for name, parts in PARTS.items()}
    pages[CLI_PAGE] = cli_page()
    outdated = [
        page for page, text in pages.items() if not page.exists() or page.read_text() != text
    ]
    for page in outdated:
        if arguments:
            print(f"docs/{page.name} is out of date: run make docs.", file=sys.stderr)
        else:
            page.write_text(pages[page], encoding="utf-8")
    return 1 if arguments and outdated else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
