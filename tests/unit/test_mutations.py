"""The rules that simulations disable one at a time are in the sources, exactly once."""

from pathlib import Path

import pytest

from tests.seeded import Change
from tests.simulation.mutations import MUTATIONS as CLUSTER_MUTATIONS
from tests.storage_model.mutations import MUTATIONS as LOG_MUTATIONS

ROOT = Path(__file__).resolve().parents[2]
CHANGES = {
    **{each.name: list(each.changes) for each in LOG_MUTATIONS},
    **{each.name: each.edits() for each in CLUSTER_MUTATIONS},
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_code_of_a_mutation_exists_once(name: str) -> None:
    for change in CHANGES[name]:
        assert isinstance(change, Change)
        path, before = change[0], change[1]
        assert (ROOT / "src" / path).read_text().count(before) == 1, before
