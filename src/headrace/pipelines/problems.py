"""Shortens errors of Spark to the file, line and message that a pipeline's author needs.

Pure, except that it reads the traceback of an exception.

1. A location is a line in a file of the project, or None.
2. `detail` has the complete text, for --verbose.
"""

import re
import traceback
from dataclasses import dataclass
from pathlib import Path

_TRACEBACK = "Traceback (most recent call last):"
_WORKER_FAILED = "Error from python worker:"
_WORKER_REMEDY = "Correct the Python environment of the workers and run again"
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
    """None if the problem is not specific to a flow."""
    file: str | None
    line: int | None
    message: str
    detail: str

    def __str__(self) -> str:
        """The format of a compiler: file and line, flow, message."""
        line = "" if self.line is None else f":{self.line}"
        location = "" if self.file is None else f"{self.file}{line}: "
        flow = "" if self.flow is None else f"flow {self.flow}: "
        return f"{location}{flow}{self.message}"


def sentence(text: str) -> str:
    """Shorten an error of Spark to a sentence or two, without plan, stack and error class."""
    text = _WRAPPER.sub("", text.strip())
    if _WORKER_FAILED in text:
        return _start_failure(text)
    if _TRACEBACK in text:
        return _raised(text)
    for noise in _NOISE:
        text = text.partition(noise)[0]
    text = re.sub(r"\s*SQLSTATE: \w+.*", "", text, flags=re.DOTALL)
    return " ".join(_CLASS.sub("", text.strip()).split())


def _start_failure(text: str) -> str:
    """The error of a Python worker that did not start, from the last line that it wrote."""
    output = text.partition(_WORKER_FAILED)[2].partition("PYTHONPATH was:")[0]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = lines[-1].removesuffix(".") if lines else "it wrote no error"
    return f"Spark cannot start a Python worker: {reason}. {_WORKER_REMEDY}"


def _raised(text: str) -> str:
    """The exception that Python raised: the first line after the stack of its traceback."""
    after = text.rpartition(_TRACEBACK)[2]
    after = after.partition("\n SQLSTATE:")[0].partition("JVM stacktrace:")[0]
    lines = [line for line in after.splitlines() if line.strip() and not line.startswith(" ")]
    raised = lines[0] if lines else text.splitlines()[0]
    # The text of Headrace's own exceptions is complete without their names.
    return re.sub(r"^headrace\.[\w.]+: ", "", raised)


def python_place(text: str, directory: Path) -> tuple[str, int] | None:
    """The innermost file and line of the project in an error of Spark."""
    frames = [(name, int(line)) for name, line in _FRAME.findall(text)]
    called = [(name, int(line)) for name, line in _CALLED_FROM.findall(text)]
    return next((at for at in reversed(called + frames) if is_own(at[0], directory)), None)


def raised_place(error: BaseException, directory: Path) -> tuple[str, int] | None:
    """The innermost file and line of the project in an exception's traceback."""
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename, directory):
        return error.filename, error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_own(frame.filename, directory)]
    return (own[-1].filename, own[-1].lineno or 1) if own else None


def is_own(file: str, directory: Path) -> bool:
    path = Path(file)
    return path.is_relative_to(directory) and "site-packages" not in path.parts


def sql_line(text: str, first_line: int) -> int | None:
    """The line of a file that a message means. Spark counts from the start of its statement."""
    found = _SQL_PLACE.search(text)
    return first_line + int(found[1]) - 1 if found else None


def mentioned_line(text: str, source: str, first_line: int) -> int | None:
    """The line of a function that contains the first quoted name of a message."""
    found = _QUOTED.search(text)
    if found is None:
        return None
    name = re.compile(rf"\b{re.escape(found[1])}\b")
    for number, line in enumerate(source.splitlines()):
        if name.search(line):
            return first_line + number
    return None
