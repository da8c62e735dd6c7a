"""Writing the sample project: complete, with any name, and never over existing files."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.pipelines.sample import write_project

ORDERS = "import generate; print(*generate.messages({seed}, 480, 40), sep='\\n')"
SHARED = {
    ".gitignore",
    "README.md",
    "encoding.py",
    "generate.py",
    "spark-pipeline.yml",
    "test_pipeline.py",
    "transformations/bronze.py",
    "transformations/decoding.py",
    "transformations/gold.sql",
    "transformations/silver.py",
    "transformations/topics.py",
}
SCHEMAS = {"schemas/order-1.avsc", "schemas/order-2.avsc"}


def written(directory: Path, *, avro: bool = False) -> set[str]:
    paths = write_project(directory, name="mill.shop", bootstrap="mill:9092", avro=avro)
    return {str(path.relative_to(directory)) for path in paths}


@pytest.mark.parametrize("avro", [False, True])
def test_a_project_is_written_whole(tmp_path: Path, avro: bool) -> None:
    assert written(tmp_path / "new", avro=avro) == (SHARED | SCHEMAS if avro else SHARED)
    spec = (tmp_path / "new" / "spark-pipeline.yml").read_text()
    assert "name: mill.shop\n" in spec
    assert 'headrace.bootstrap: "mill:9092"\n' in spec
    # Spark's own command accepts no relative path.
    assert f'storage: "file://{tmp_path}/new/.headrace/checkpoints"\n' in spec
    for path in (tmp_path / "new").rglob("*"):
        text = path.read_text() if path.is_file() else ""
        assert "{{" not in text, path
        if path.suffix == ".py":
            ast.parse(text)


def test_files_in_an_existing_directory_are_kept(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        written(tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["", "a b", "../up", "-x", 'quote"'])
def test_a_name_that_would_break_the_project_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="invalid project name"):
        write_project(tmp_path / "new", name=name, bootstrap="mill:9092")
    assert not (tmp_path / "new").exists()


def test_generator_is_deterministic_per_seed(
    tmp_path: Path,
) -> None:
    written(tmp_path)

    def generated(seed: int) -> str:
        program = [sys.executable, "-c", ORDERS.format(seed=seed)]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    assert generated(3) == generated(3) != generated(4)
    assert "channel" in generated(3)
    first = json.dumps({"order_id": "o0000480", "seq": 1}).rstrip("}")
    assert first in generated(3)
