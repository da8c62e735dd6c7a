"""The sample project that `headrace pipeline init` writes: a shop whose orders are events.

Owns nothing but the copying; the project is in `shop/`: what both formats share in `project/`, and
over it what differs in `json/` and `avro/`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

_TEMPLATES = Path(__file__).parent / "shop"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def write_project(directory: Path, *, name: str, bootstrap: str, avro: bool = False) -> list[Path]:
    """Write the project into a directory that is new or empty, and return its files."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a project: use letters, digits, '.', '_', '-'")
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty: name another directory")
    texts = {Path(".gitignore"): ".headrace/\n__pycache__/\n"}
    for part in ("project", "avro" if avro else "json"):
        texts |= dict(_texts(_TEMPLATES / part))
    storage = f"file://{directory.resolve()}/.headrace/checkpoints"
    values = {"name": name, "bootstrap": bootstrap, "storage": storage}
    written = []
    for place, text in sorted(texts.items()):
        path = directory / place
        path.parent.mkdir(parents=True, exist_ok=True)
        for key, value in values.items():
            text = text.replace(f"{{{{{key}}}}}", value)
        path.write_text(text)
        written.append(path)
    return written


def _texts(template: Path) -> Iterator[tuple[Path, str]]:
    for path in template.rglob("*"):
        # An installed package has compiled files beside its sources.
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(template), path.read_text()
