"""Builds the package: the hot modules are compiled with mypyc where that is possible.

1. The same files run uncompiled. A machine without a C compiler, or a module that mypyc refuses,
   gives a pure Python build and one line that says why.
2. `HEADRACE_COMPILE=0` asks for a pure build.
3. An editable install is never compiled: a stale machine-code module would hide the edited source.
4. A wheel holds no file that the sources no longer have, although `build/` is kept as a cache.
"""

import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import BaseError, CCompilerError

ROOT = Path(__file__).resolve().parent
_COMPILING = frozenset({"bdist_wheel", "build", "build_ext", "install"})


def hot_modules() -> list[Path]:
    """The modules whose first line is marked `# HOT`: the mark in the file is the only list."""
    modules = sorted((ROOT / "src").rglob("*.py"))
    return [path for path in modules if "# HOT" in path.read_text().partition("\n")[0]]


def stay_pure(reason: object) -> None:
    first_line = (str(reason).strip().splitlines() or [repr(reason)])[0]
    print(f"headrace: the hot modules stay pure Python ({first_line})", file=sys.stderr, flush=True)


def hot_extensions() -> list[Extension]:
    if not _COMPILING & set(sys.argv[1:]):
        return []
    if os.environ.get("HEADRACE_COMPILE") == "0":
        stay_pure("HEADRACE_COMPILE=0")
        return []
    paths = [str(path.relative_to(ROOT)) for path in hot_modules()]
    os.environ["MYPYPATH"] = str(ROOT / "src")
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    try:
        from mypyc.build import mypycify

        # One group: calls between the hot modules are C calls.
        extensions = mypycify([*options, *paths], group_name="headrace", debug_level="0")
    except (Exception, SystemExit) as error:  # noqa: BLE001  Any failure means a pure build.
        stay_pure(f"mypyc: {error!r}")
        return []
    return list(extensions)


class BuildSources(build_py):
    """Copies the sources over an earlier build, and drops what they no longer have."""

    def run(self) -> None:
        library = Path(self.build_lib)
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        extensions = self.distribution.ext_modules or []
        expected = {library / (e.name.replace(".", os.sep) + suffix) for e in extensions}
        for path in list(library.rglob("*.so")):
            if path not in expected:
                path.unlink()
        for path in list(library.rglob("*")):
            source = ROOT / "src" / path.relative_to(library)
            if path.is_file() and path.suffix != ".so" and not source.exists():
                path.unlink()
        super().run()


class BuildHot(build_ext):
    """Compiles all of the hot modules, or none."""

    def run(self) -> None:
        try:
            super().run()
        except (BaseError, CCompilerError, OSError) as error:
            stay_pure(error)
            for path in list(Path(self.build_lib).rglob("*.so")):
                path.unlink()
            self.extensions = []


setup(ext_modules=hot_extensions(), cmdclass={"build_py": BuildSources, "build_ext": BuildHot})
