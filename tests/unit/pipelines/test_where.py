"""Conditions of `headrace pipeline show --where`."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.pipelines.where import InvalidCondition, condition

TIME = datetime(2026, 1, 31, 12, tzinfo=UTC)
ROWS = pa.table(
    {
        "n": pa.array([1, 2, None]),
        "text": ["it's", "Mill", None],
        "flag": [True, False, None],
        "at": pa.array([TIME, TIME.replace(hour=13), None], pa.timestamp("us", "UTC")),
        "plain": pa.array([TIME.replace(tzinfo=None)] * 2 + [None], pa.timestamp("us")),
        "day": pa.array([date(2026, 1, 1), date(2026, 1, 2), None]),
        "price": pa.array([Decimal("1.50"), Decimal("2.50"), None], pa.decimal128(9, 2)),
        "raw": pa.array([b"a", b"b", None]),
        "order": pa.array([{"a b": {"id": 7}}, {"a b": {"id": 8}}, None]),
        "row": [0, 1, 2],
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("n = 1", [0]),
        ("n == 1 OR n <> 1", [0, 1]),
        ("n > 1.5", [1]),
        ("n >= -1 and not n != 2", [1]),
        ("NOT (n = 1 OR text = 'x')", [1]),
        ("row < 2 AND row > 0 OR row = 2", [1, 2]),
        ("n IS NULL", [2]),
        ("text IS NOT NULL", [0, 1]),
        ("n IN (2, 3)", [1]),
        ("n NOT IN (2)", [0]),
        ("text = 'it''s'", [0]),
        ("text LIKE 'M%'", [1]),
        ("text NOT LIKE 'M%'", [0]),
        ("n BETWEEN 1 AND 1 OR row = 2", [0, 2]),
        ("flag", [0]),
        ("(flag) OR flag = false AND row = 1", [0, 1]),
        ("flag = false", [1]),
        ("at > '2026-01-31T12:30'", [1]),
        ("at = '2026-01-31T13:00:00+01:00'", [0]),
        ("plain <= '2026-01-31T12:00:00Z'", [0, 1]),
        ("day = '2026-01-02'", [1]),
        ("price > 1.5", [1]),
        ("price = '1.50'", [0]),
        ("raw = 'b'", [1]),
        ("order.`a b`.id = 8", [1]),
    ],
)
def test_condition_selects_rows(text: str, rows: list[int]) -> None:
    found = ROWS.filter(condition(text, ROWS.schema))
    assert found.column("row").to_pylist() == rows


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it ends too early"),
        ("n =", "it ends too early"),
        ("n = 1 2", "unexpected '2' after a complete condition"),
        ("n ~ 1", "unexpected '~ 1'"),
        ("(n = 1", "expected ), found the end"),
        ("n IN 1", "expected (, found '1'"),
        ("1 = n", "expected a column, found '1'"),
        ("n 1", "expected a comparison after n, found '1'"),
        ("tex = 'a'", "unknown column 'tex'; did you mean text?"),
        ("order.x = 1", "unknown column 'x'; known: a b"),
        ("text = Mill", "expected a value for text, found 'Mill'. Put text in single quotes"),
        ("text = 1", "text is string, but 1 is a number"),
        ("n = 'a'", "n is int64, but 'a' is not a value of this type"),
        ("at > 'noon'", "at is timestamp[us, tz=UTC], but 'noon' is not a value of this type"),
        ("n LIKE '1%'", "LIKE needs text, but n is int64"),
    ],
)
def test_invalid_condition_is_explained(text: str, reason: str) -> None:
    with pytest.raises(InvalidCondition) as error:
        condition(text, ROWS.schema)
    assert str(error.value) == reason
