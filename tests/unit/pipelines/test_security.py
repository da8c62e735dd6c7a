"""Security settings of a pipeline: its specification, a properties file, and the command."""

from pathlib import Path

import pytest

from headrace.pipelines.project import open_project
from headrace.pipelines.security import CONFIG, client_settings

SPECIFICATION = """
name: river
storage: storage
libraries:
  - glob:
      include: transformations/**
configuration:
  headrace.config: client.properties
  kafka.sasl.password: hush
"""
PROPERTIES = "security.protocol=SASL_PLAINTEXT\nsasl.username=bob\nsasl.password=old\n"


def test_specification_names_a_file_and_overrides_it(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text(SPECIFICATION)
    (tmp_path / "client.properties").write_text(PROPERTIES)
    project = open_project(tmp_path)
    configuration = project.configuration(None)
    assert configuration[CONFIG] == str(tmp_path / "client.properties")
    assert client_settings(configuration) == {
        "sasl_username": "bob",
        "sasl_password": "hush",
        "sasl_mechanism": "SCRAM-SHA-256",
    }
    other = tmp_path / "other.properties"
    other.write_text(PROPERTIES.replace("bob", "eve"))
    configuration = project.configuration(None, config=str(other))
    assert client_settings(configuration)["sasl_username"] == "eve"


def test_project_without_security_settings_has_none(tmp_path: Path) -> None:
    assert client_settings({}) == {}


def test_invalid_settings_are_reported() -> None:
    with pytest.raises(ValueError, match="cannot read /missing"):
        client_settings({CONFIG: "/missing"})
