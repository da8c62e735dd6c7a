"""Shortens errors of Spark to the file, line and message that a pipeline's author needs.

Pure, but for the traceback of an exception that is at hand.

1. A place is one in the project's own files, or none.
2. Nothing is lost: `detail` has the whole text, for --verbose.
"""

import re
import traceback
from dataclasses import dataclass
from pathlib import Path

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_CALLED_FROM = re.compile(r"was called from\n(.+):(\d+)")
_SQL_PLACE = re.compile(r"\bline (\d+),? pos \d+")
_QUOTED = re.compile(r"`([^`]+)`")
_CLASS = re.compile(r"^\[[A-Z0-9_.]+\] ")
_WRAPPER = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", re.DOTALL)
_NOISE = (
    " Verify the spelling",
    "JVM stacktrace:",
    "=== Streaming Query ===",
    "\n== ",
    "\n'",
    "\n+- ",
)


@dataclass(frozen=True)
class Problem:
    flow: str | None
    """None if it is not one flow's."""
    file: str | None
    line: int | None
    message: str
    detail: str

    def __str__(self) -> str:
        """As a compiler says it: where, in which flow, what."""
        line = "" if self.line is None else f":{self.line}"
        where = "" if self.file is None else f"{self.file}{line}: "
        who = "" if self.flow is None else f"flow {self.flow}: "
        return f"{where}{who}{self.message}"


def sentence(text: str) -> str:
    """An error of Spark in a sentence or two: no plan, no stack, no classes of errors."""
    text = _WRAPPER.sub("", text.strip())
    if _TRACEBACK in text:
        return _raised(text)
    for noise in _NOISE:
        text = text.partition(noise)[0]
    text = re.sub(r"\s*SQLSTATE: \w+.*", "", text, flags=re.DOTALL)
    return " ".join(_CLASS.sub("", text.strip()).split())


def _raised(text: str) -> str:
    """What Python raised: the last line of its traceback."""
    after = text.rpartition(_TRACEBACK)[2]
    after = after.partition("\n SQLSTATE:")[0].partition("JVM stacktrace:")[0]
    lines = [line for line in after.splitlines() if line.strip() and not line.startswith(" ")]
    raised = lines[0] if lines else text.splitlines()[0]
    # Our own say what to do: the exception's name would not add to it.
    return re.sub(r"^headrace\.[\w.]+: ", "", raised)


def python_place(text: str, directory: Path) -> tuple[str, int] | None:
    """The innermost line of the project's that a message of Spark names."""
    frames = [(name, int(line)) for name, line in _FRAME.findall(text)]
    called = [(name, int(line)) for name, line in _CALLED_FROM.findall(text)]
    return next((at for at in reversed(called + frames) if is_own(at[0], directory)), None)


def raised_place(error: BaseException, directory: Path) -> tuple[str, int] | None:
    """The innermost line of the project's in an exception's traceback."""
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename, directory):
        return error.filename, error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_own(frame.filename, directory)]
    return (own[-1].filename, own[-1].lineno or 1) if own else None


def is_own(file: str, directory: Path) -> bool:
    path = Path(file)
    return path.is_relative_to(directory) and "site-packages" not in path.parts


def sql_line(text: str, first_line: int) -> int | None:
    """The line of a file that a message means; Spark counts from its statement's first."""
    found = _SQL_PLACE.search(text)
    return first_line + int(found[1]) - 1 if found else None


def mentioned_line(text: str, source: str, first_line: int) -> int | None:
    """Where a function's source has the first name that a message puts in quotes."""
    found = _QUOTED.search(text)
    if found is None:
        return None
    name = re.compile(rf"\b{re.escape(found[1])}\b")
    for number, line in enumerate(source.splitlines()):
        if name.search(line):
            return first_line + number
    return None
