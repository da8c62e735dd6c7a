"""Ten members that come and go at random while records are written (I21 to I23, with real time).

HEADRACE_CHURN_SECONDS makes it last longer, HEADRACE_CHURN_SEED makes it another one.
"""

import os

import pytest

from tests.broker.group_churn import ChurningMember, ConsumerChurningMember, churn

SECONDS = float(os.environ.get("HEADRACE_CHURN_SECONDS", "4"))


@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize("kind", [ChurningMember, ConsumerChurningMember])
def test_a_churning_group_reads_everything_with_one_owner_each(
    kind: type[ChurningMember], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data_dir = tmp_path_factory.mktemp("churn") / "data"
    record = churn(
        data_dir, SECONDS, lambda broker, number, record: kind(broker.port, number, record)
    )
    assert len(record.generations) > 3
