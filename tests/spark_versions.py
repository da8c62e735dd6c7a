"""`python -m tests.spark_versions [VERSION ...]`: run the tests on other versions of PySpark.

Each version has an environment in `.venv/spark/VERSION`, which contains PySpark and takes all else
from the environment that runs this program.
"""

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

from headrace.pipelines.formats import BUILDS
from headrace.spark.versions import (
    NEWEST,
    OLDEST,
    PIPELINES_SINCE,
    Version,
    installed,
    shown,
    version_of,
)

ROOT = Path(__file__).resolve().parents[1]
ALL = [(OLDEST[0], minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]
API = "tests/unit/spark/test_pyspark_api.py"
SHORT = [
    API,
    "tests/spark/test_reading.py::test_rows_contain_all_fields_of_the_records",
    "tests/spark/test_streaming.py::test_runs_resume_at_the_checkpoint_and_commit_to_their_group",
    "tests/spark/test_writing.py::test_rows_are_written_to_the_partitions_of_the_java_producer",
    "tests/spark/test_writing.py::test_stream_copies_a_topic",
]
"""A batch and a stream, read and written."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark_versions", description=__doc__)
    parser.add_argument("versions", nargs="*", type=version_of, metavar="VERSION", default=ALL)
    parser.add_argument("--short", action="store_true", help="reads and writes of the data source")
    parser.add_argument(
        "--formats", action="store_true", help="only Iceberg and Delta (from Maven)"
    )
    chosen = parser.parse_args()
    failed = []
    for version in chosen.versions:
        for tests in suites(version, short=chosen.short, formats=chosen.formats):
            print(f"== PySpark {shown(version)}: {' '.join(tests)}", flush=True)
            done = subprocess.run([str(python(version)), "-m", "pytest", *tests], cwd=ROOT)
            if done.returncode:
                failed.append(f"{shown(version)} ({tests[-1]})")
    if failed:
        raise SystemExit(f"failed on PySpark {', '.join(failed)}")


def suites(version: Version, *, short: bool, formats: bool) -> list[list[str]]:
    """Those that one process each runs: they share a Spark session, or a server."""
    if formats:
        has_build = any(version in builds for builds in BUILDS.values())
        return [["tests/formats"]] if has_build else []
    if short:
        return [SHORT]
    pipelines = [["tests/pipelines"], ["tests/formats"]] if version >= PIPELINES_SINCE else []
    return [[API, "tests/spark"], *pipelines]


def python(version: Version) -> Path:
    """The interpreter of an environment with this version; it is made if it does not exist."""
    here = installed()
    if here is not None and version_of(here) == version:
        return Path(sys.executable)
    place = Path(sys.prefix) / "spark" / shown(version)
    interpreter = place / "bin" / "python"
    done = place / ".installed"
    if not done.exists():
        print(f"== Installing PySpark {shown(version)} into {place}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        # Behind the environment's own packages, so that its PySpark is found first.
        packages = sysconfig.get_path("purelib", vars={"base": str(place)})
        others = [path for path in sys.path if path.endswith("site-packages")]
        Path(packages, "headrace_tests.pth").write_text("\n".join(others) + "\n")
        install = [str(interpreter), "-m", "pip", "install", "--quiet", "--ignore-installed"]
        options = ["--disable-pip-version-check", "--no-build-isolation"]
        subprocess.run([*install, *options, f"pyspark=={shown(version)}.*"], check=True)
        done.touch()
    return interpreter


if __name__ == "__main__":
    main()
