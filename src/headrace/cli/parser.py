"""An argument parser whose errors list actions and suggest the nearest option or action."""

import argparse
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, NoReturn

_NEVER_EMPTY = frozenset(
    {"DIR", "FILE", "FILE.svg", "HOST:PORT", "HOST:PORT/PATH", "sc://HOST:PORT"}
)
"""Values of these kinds are not empty, except by mistake, such as --data "$UNSET"."""


class Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **options: Any) -> None:
        # A shortened option would stop working when another one begins with the same letters.
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Report an unknown argument with the usage of its action, not of the whole command."""
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        for action in self._actions:
            value = getattr(known, action.dest, None)
            if action.metavar not in _NEVER_EMPTY or value == action.const:
                continue
            if isinstance(value, str) and not value.strip():
                name = "/".join(action.option_strings) or action.metavar
                self.error(f"argument {name}: the value is empty")
        return known, rest

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"invalid (int|float) value: ('.*')", r"\2 is not a number", message)
        if message.endswith("required: ACTION"):
            actions = ", ".join(self._actions_by_name())
            message = f"ACTION is missing: use one of {actions}"
        self.exit(2, f"{self.format_usage()}{self.prog}: error: {message}{self._hint(message)}\n")

    def _hint(self, message: str) -> str:
        wrong = re.search(r"unrecognized arguments: (-[^\s=]+)", message)
        known = list(self._options())
        if wrong is None:
            wrong = re.search(r"invalid choice: '([^']*)'", message)
            known = re.findall(r"'([^']*)'", message)[1:]
        near = get_close_matches(wrong[1], known, 1) if wrong else []
        return f". Did you mean {near[0]}?" if near and wrong and near[0] != wrong[1] else ""

    def _actions_by_name(self) -> dict[str, argparse.ArgumentParser]:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return dict(action.choices)
        return {}

    def _options(self) -> Iterator[str]:
        yield from self._option_string_actions
        for parser in self._actions_by_name().values():
            if isinstance(parser, Parser):
                yield from parser._options()
