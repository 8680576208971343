"""Rows of a window that were passed on: every table, what is refused, and hostile lines."""

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.collectors.formats import rows

HEAD = {"weaklink_rows": 1, "file": {"name": "x", "instance": "a:1", "pid": "7", "clock_offset_s": 2.5}}


def read(*lines: Any) -> list[Any]:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return list(rows.read(io.BytesIO(text.encode()), 0.0))


def rejected(*lines: Any) -> int:
    return int(read(*lines)[-1].columns["rejected"][0])


def test_the_first_line_says_whose_file_it_was():
    (last,) = read(HEAD)
    assert dict(last.columns) == {"lines": [1], "rejected": [0], "instance": ["a:1"], "pid": ["7"], "clock_offset_s": [2.5]}


def test_samples_lie_side_by_side():
    series = {"table": "series", "columns": {"series": [0, 1], "name": ["n", "m"], "labels": [{"b": "1", "a": "2"}, {}]}}
    samples = {"table": "sample", "ts": [1.0, 2.0], "values": {"0": [5, None], "1": ["inf", 0.5]}}
    first, second, _ = read(HEAD, series, samples)
    assert first.columns["labels"] == ['{"a": "2", "b": "1"}', "{}"]
    assert second.columns == {"series": [0, 1, 1], "ts": [1.0, 1.0, 2.0], "value": [5.0, float("inf"), 0.5]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": "stat"}, {"table": ["stat"], "columns": {}}, {"table": "stat", "columns": {"line": [1], "engine": [None]}}, {"table": "stat", "columns": {"line": [], "engine": []}},
        {"table": "stat", "columns": {"line": [1], "engine": "0"}}, {"table": "source_file", "columns": {"name": ["x"]}}, {"table": "stat; DROP TABLE sample", "columns": {"line": [1]}},
        {"table": "event", "columns": {"line": [1], "kind": ["args"], "fields": [[1]]}}, {"table": "scrape", "columns": {"ts": ["inf2"], "ok": [True], "timed": [True]}},
        {"table": "scrape", "columns": {"ts": [1.0], "ok": [1], "timed": [True]}}, {"table": "sample", "ts": [1.0], "values": {"0": [1.0]}}, {"table": "sample", "ts": [None], "values": {"0": [1.0]}},
        {"table": "kv_event", "columns": {"line": [1], "ts": [1e999], "engine": ["0"], "source": ["x"], "kind": ["stored"]}},
    ],
)  # fmt: skip
def test_what_is_no_row_is_counted(wrong: dict[str, Any]):
    assert rejected(HEAD, wrong) == 1


def test_another_version_is_refused():
    assert rejected({"weaklink_rows": 2, "file": {}}) == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_anything_is_read_without_an_error(value: Any):
    for table in (*rows.TABLES, "sample"):
        columns = {name: [value] for name in rows.TABLES.get(table, {})}
        read(HEAD, {"table": table, "columns": columns, "ts": value, "values": {"0": value}}, value)
