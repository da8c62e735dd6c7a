"""The command that installs the packages of an extra."""

import re
from collections.abc import Iterator
from shlex import quote


def install_command(extra: str) -> str:
    """The command names the packages, so it works even if Headrace is on no package index."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        required = requires("headrace") or []
    except PackageNotFoundError:
        required = []
    packages: dict[str, str] = {}
    for requirement in _packages(extra, required):
        packages.setdefault(re.split(r"[^\w.-]", requirement)[0].lower(), quote(requirement))
    names = " ".join(packages.values())
    return f"pip install {names}" if names else f"pip install '.[{extra}]'"


def _packages(extra: str, required: list[str]) -> Iterator[str]:
    """The requirements of an extra, then those of the extras that it includes."""
    marked = [line.partition(";") for line in required]
    own = [text.strip() for text, _, mark in marked if f'"{extra}"' in mark]
    included = [found[1] for text in own if (found := re.fullmatch(r"headrace\[(\w+)\]", text))]
    yield from (text for text in own if not text.startswith("headrace["))
    for each in included:
        yield from _packages(each, required)
