"""What Spark's Python workers are started with."""

import subprocess
import sys

from headrace.spark.sessions import worker_python


def test_workers_import_pyspark_from_the_package_and_not_from_sparks_zips() -> None:
    path = "/a/python/lib/pyspark.zip:/a/python/lib/py4j-0.10.9.9-src.zip:/b c:/d*/mine.zip"
    told = subprocess.run(
        [worker_python(), "-c", "import os, sys; print(sys.executable, os.environ['PYTHONPATH'])"],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == f"{sys.executable} /b c:/d*/mine.zip\n"
