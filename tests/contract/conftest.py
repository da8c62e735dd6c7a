"""Every contract test runs once for each kind of store."""

from pathlib import Path

import pytest

from tests.contract.ensembles import ENSEMBLES, Ensemble


@pytest.fixture(params=sorted(ENSEMBLES))
def ensemble(request: pytest.FixtureRequest, tmp_path: Path) -> Ensemble:
    return ENSEMBLES[request.param](tmp_path)
