"""Builds the package, and compiles the hot modules with mypyc if possible.

1. The hot modules also run uncompiled. Without a C compiler, or if mypyc rejects a module, the
   build creates a pure wheel with the tag of a pure wheel, and prints the reason.
2. `HEADRACE_COMPILE=0` requests a pure build.
3. An editable install is never compiled: a compiled module would hide later edits of its source.
4. `build/` is kept as a cache. A wheel contains no file of it that was deleted from the sources.
5. `HEADRACE_URL` is the URL of the repository. With it, the package has project URLs, and its
   README has absolute links.
"""

import os
import re
import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"headrace needs Python 3.11 or newer; this is Python {sys.version.split()[0]}")

import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import BaseError, CCompilerError

ROOT = Path(__file__).resolve().parent
_COMPILING = frozenset({"bdist_wheel", "build", "build_ext", "install"})


def hot_modules() -> list[Path]:
    """The modules whose first line contains `# HOT`. No other list of them exists."""
    modules = sorted((ROOT / "src").rglob("*.py"))
    return [path for path in modules if "# HOT" in path.read_text().partition("\n")[0]]


def report_pure_build(reason: object) -> None:
    first_line = (str(reason).strip().splitlines() or [repr(reason)])[0]
    print(f"headrace: the hot modules are not compiled ({first_line})", file=sys.stderr, flush=True)


def hot_extensions() -> list[Extension]:
    if not _COMPILING & set(sys.argv[1:]):
        return []
    if os.environ.get("HEADRACE_COMPILE") == "0":
        report_pure_build("HEADRACE_COMPILE=0")
        return []
    paths = [str(path.relative_to(ROOT)) for path in hot_modules()]
    os.environ["MYPYPATH"] = str(ROOT / "src")
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    try:
        from mypyc.build import mypycify

        # Modules of one group call each other directly, as C functions.
        extensions = mypycify([*options, *paths], group_name="headrace", debug_level="0")
    except (Exception, SystemExit) as error:  # noqa: BLE001  Build pure Python then.
        report_pure_build(f"mypyc: {error!r}")
        return []
    return list(extensions)


class BuildSources(build_py):
    """Copies the sources into the directory of an earlier build, and deletes its other files."""

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

    def byte_compile(self, files: list[str]) -> None:
        """Do nothing: wheels have no bytecode, and setuptools warns if Python writes none."""


class BuildHot(build_ext):
    """Compiles all hot modules, or none of them."""

    def run(self) -> None:
        try:
            super().run()
        except (BaseError, CCompilerError, OSError) as error:
            report_pure_build(error)
            for path in list(Path(self.build_lib).rglob("*.so")):
                path.unlink()
            self.extensions = []
            self.distribution.ext_modules = []


class BuildSdist(sdist):
    """Omits compiled files. MANIFEST.in would cause a warning if none exist."""

    def make_distribution(self) -> None:
        files = self.filelist.files
        self.filelist.files = [name for name in files if not name.endswith((".so", ".pyc"))]
        super().make_distribution()


class BuildWheel(bdist_wheel):
    """Compiles before the wheel gets its tag."""

    def run(self) -> None:
        if self.distribution.has_ext_modules():
            self.run_command("build_ext")
            self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()


def project_pages() -> dict[str, object]:
    """The README and, if the URL of the repository is known, the project URLs."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    url = os.environ.get("HEADRACE_URL", "").rstrip("/")
    pages: dict[str, object] = {"long_description_content_type": "text/markdown"}
    if url:
        files, images = f"{url}/blob/main", f"{url}/raw/main"
        relative = r"\((?!https?:|#)([^)\s]+)\)"
        text = re.sub(r"(!\[[^\]]*\])" + relative, rf"\1({images}/\2)", text)
        text = re.sub(r"(\[[^\]]*\])" + relative, rf"\1({files}/\2)", text)
        pages["project_urls"] = {
            "Homepage": url,
            "Documentation": f"{files}/README.md",
            "Changelog": f"{files}/CHANGELOG.md",
            "Issues": f"{url}/issues",
        }
    return {"long_description": text, **pages}


if __name__ == "__main__":
    setup(
        ext_modules=hot_extensions(),
        cmdclass={
            "bdist_wheel": BuildWheel,
            "build_ext": BuildHot,
            "build_py": BuildSources,
            "sdist": BuildSdist,
        },
        **project_pages(),
    )
