"""The release: the declared versions of Python have wheels."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def test_every_declared_python_has_a_wheel_for_both_architectures() -> None:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    prefix = "Programming Language :: Python :: 3."
    declared = [
        each.removeprefix(prefix)
        for each in settings["project"]["classifiers"]
        if each.startswith(prefix)
    ]
    wheels = settings["tool"]["cibuildwheel"]
    assert wheels["build"] == [f"cp3{minor}-*" for minor in declared]
    assert wheels["linux"]["archs"] == ["x86_64", "aarch64"]
