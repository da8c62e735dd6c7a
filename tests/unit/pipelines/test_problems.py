"""Errors of Spark, cut down to the line of the user's code and a sentence."""

from pathlib import Path

import pytest

from headrace.pipelines.problems import (
    mentioned_line,
    python_place,
    raised_place,
    sentence,
    sql_line,
)

HERE = Path("/projects/shop")
WORKER = """\
[STREAM_FAILED] Query [id = 7, runId = 8] terminated with exception: [PYTHON_EXCEPTION] An \
exception was thrown from the Python worker: Traceback (most recent call last):
  File "/projects/shop/transformations/a.py", line 7, in half
    return part(x)
  File "/usr/lib/python3/site-packages/other.py", line 3, in part
    return 1 // 0
           ~~^^~~
ZeroDivisionError: integer division or modulo by zero
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: silver [id = 7, runId = 8]
JVM stacktrace:
org.apache.spark.SparkException
\tat org.apache.spark.Some.thing(Some.scala:1)
"""
COLUMN = """\
[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nothing` cannot be resolved. Did you mean \
one of the following? [`id`]. SQLSTATE: 42703; line 4 pos 2;
'Project [id#317L, 'nothing]
+- SubqueryAlias spark_catalog.default.fine
"""
DIVISION = """\
[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012
== DataFrame ==
"__truediv__" was called from
/projects/shop/transformations/a.py:20
"""
NO_START = """\
An error occurred while calling o49.collectToPython. Job aborted due to stage failure: \
org.apache.spark.SparkException:\x20
Error from python worker:
  Traceback (most recent call last):
    File "<frozen runpy>", line 189, in _run_module_as_main
  ModuleNotFoundError: No module named 'pyspark'
PYTHONPATH was:
  /opt/spark/jars/spark-core_2.13-4.3.0.jar:/srv/packages
org.apache.spark.SparkException: EOFException occurred while reading the port number from \
pyspark.daemon's stdout.
\tat org.apache.spark.Some.thing(Some.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WORKER, "ZeroDivisionError: integer division or modulo by zero"),
        (
            COLUMN,
            "A column with name `nothing` cannot be resolved. Did you mean one of the following? "
            "[`id`].",
        ),
        (DIVISION, "Division by zero. Use `try_divide`."),
        (
            NO_START,
            "Spark cannot start a Python worker: ModuleNotFoundError: No module named 'pyspark'. "
            "Correct the Python environment of the workers and run again",
        ),
        ("Traceback (most recent call last):\nheadrace.client.errors.X: start it\n", "start it"),
        ("plain", "plain"),
    ],
)
def test_an_error_is_a_sentence(text: str, said: str) -> None:
    assert sentence(text) == said


def test_the_place_is_the_innermost_line_of_the_project() -> None:
    assert python_place(WORKER, HERE) == ("/projects/shop/transformations/a.py", 7)
    assert python_place(DIVISION, HERE) == ("/projects/shop/transformations/a.py", 20)
    assert python_place(COLUMN, HERE) is None
    assert python_place(WORKER, Path("/projects/other")) is None


def test_a_line_of_sql_is_counted_from_its_statement() -> None:
    assert sql_line(COLUMN, 10) == 13
    assert sql_line("[PARSE] wrong (line 5, pos 14)", 1) == 5
    assert sql_line(DIVISION, 1) is None


def test_a_name_that_spark_quotes_is_found_in_the_function() -> None:
    source = "@dp.table\ndef a():\n    return b.select('nothing')\n"
    assert mentioned_line(COLUMN, source, 30) == 32
    assert mentioned_line(COLUMN, "def a(): pass", 30) is None


def test_an_exception_is_placed_by_its_traceback(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def wrong():\n    return [][1]\n\nwrong()\n")
    with pytest.raises(IndexError) as raised:
        exec(compile(path.read_text(), str(path), "exec"), {})
    assert raised_place(raised.value, tmp_path) == (str(path), 2)
    with pytest.raises(SyntaxError) as unread:
        compile("a = 1\nb = (\n", str(path), "exec")
    assert raised_place(unread.value, tmp_path) == (str(path), 2)
