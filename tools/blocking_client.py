"""Generates the blocking API of the client from the asyncio one.

    python tools/blocking_client.py [--check]

`client/aio/driver.py` and `delivery.py` have counterparts in `client/blocking` that are written by
hand. With `--check`, nothing is written, and the exit code is 1 if a file differs.
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "src" / "headrace" / "client"
MODULES = ("client.py", "groups.py", "streams.py")
# The rules are applied in this order.
RULES = (
    # Sentences of the documentation.
    (
        r"Use it only on the\nloop on which it was opened\. Errors are those of "
        r"`headrace\.client\.core\.errors`\.",
        "It has no thread:\nuse it from one thread at a time, or create one client per thread. "
        "Errors are those of\n`headrace.client.core.errors`.",
    ),
    (
        r"The loop sends heartbeats, also between two polls\.",
        "It has no thread: heartbeats are sent while `poll` waits. So a program that works longer "
        "than the\nsession timeout between two polls loses its partitions.",
    ),
    (
        r"The loop sends batches when they are due\.",
        "It has no thread: batches are sent while `send`, `flush` or `result` runs.",
    ),
    (r"asyncio programs", "programs without an event loop"),
    (r"headrace\.client\.aio\.connect", "headrace.client.connect"),
    # Code.
    (r"headrace\.client\.aio\b", "headrace.client.blocking"),
    (r"AsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync(Generator|Iterator)\b", r"\1"),
    (r"\b__a(enter|exit|iter)__\b", r"__\1__"),
    (r"\baclosing\b", "closing"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"(?<!\w)\(await ([^()]+\([^()]*\))\)", r"\1"),
    (r"\bawait ", ""),
    (r"for (\w+) in (.+):\n +yield \1\n", r"yield from \2\n"),
)


def blocking(source: str) -> str:
    """Convert the source of an asyncio module to the blocking API."""
    for pattern, replacement in RULES:
        source = re.sub(pattern, replacement, source)
    note = "# Generated from client/aio by tools/blocking_client.py: edit that, not this.\n"
    return _formatted(note + source)


def _formatted(source: str) -> str:
    name = ["--stdin-filename", str(CLIENT / "blocking" / "client.py"), "-"]
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select=I", "--fix", "--quiet"], ["format", "--quiet"]):
        done = subprocess.run(
            [*ruff, *command, *name], input=source, capture_output=True, text=True, check=True
        )
        source = done.stdout
    return source


def main() -> int:
    is_check = sys.argv[1:] == ["--check"]
    differs = 0
    for name in MODULES:
        target = CLIENT / "blocking" / name
        text = blocking((CLIENT / "aio" / name).read_text(encoding="utf-8"))
        if text == target.read_text(encoding="utf-8"):
            continue
        differs = 1
        if is_check:
            print(f"{target} does not match client/aio. Run python tools/blocking_client.py.")
        else:
            target.write_text(text, encoding="utf-8")
    return differs if is_check else 0


if __name__ == "__main__":
    sys.exit(main())
