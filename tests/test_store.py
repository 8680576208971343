"""The store: migrations, what goes in comes out, all or nothing, one writer, a cursor for each thread."""

import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.model import Batch
from app import store as module
from app.store import DatabaseError, Store, StoreError, sql, sql_names

SCHEMA: Final = "".join(sql("schema", name) for name in sql_names("schema"))


def tables() -> dict[str, dict[str, str]]:
    """Return the columns of each table, with their types."""
    with Store() as store:
        found = store.rows(
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = 'main' AND table_name IN (SELECT table_name FROM duckdb_tables()) ORDER BY ordinal_position"
        )
    columns: dict[str, dict[str, str]] = {}
    for table, column, kind in found:
        columns.setdefault(table, {})[column] = kind
    return columns


TABLES: Final = {name: columns for name, columns in tables().items() if name != "migration"}
TEXTS: Final = ["", "x", "é ✓ 漢字 🚀", "a\tb\nc", "'; DROP TABLE sample; --", '{"k": "v"}', "\x00", " " * 3]
VALUES: Final[dict[str, list[Any]]] = {
    "VARCHAR": TEXTS,
    "DOUBLE": [0.0, -0.0, 1e-300, 1795953600.123456, -1e308, 0.1 + 0.2, 5e-324, 1.0],
    "BIGINT": [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63), 7, 42],
    "BOOLEAN": [True, False] * 4,
    "VARCHAR[]": [[], ["a"], ["a", "b"], TEXTS, [""], ["18446744073709551615"], [], ["z"]],
    "FLOAT[]": [[], [0.5], [0.25, 1024.0], [-1.5] * 100, [0.0], [2.0**-20], [], [1.0]],
}
REQUIRED: Final = {  # columns that must have a value
    table: {line.split()[0] for line in block.splitlines() if "NOT NULL" in line or "PRIMARY KEY" in line}
    for table, block in ((part.split(" ")[0], part) for part in SCHEMA.split("CREATE TABLE ")[1:])
}


def rows(store: Store, table: str, columns: dict[str, Any]) -> list[tuple[Any, ...]]:
    return store.rows(f"SELECT {', '.join(columns)} FROM {table} ORDER BY rowid")


def test_the_tables_are_those_that_these_tests_know():
    assert set(REQUIRED) == set(TABLES)
    assert {kind for columns in TABLES.values() for kind in columns.values()} <= set(VALUES)


# -- in and out --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_every_value_of_every_column_comes_back(table: str):
    columns = TABLES[table]
    batch = {name: [*range(100, 108)] if name in {"file_id", "series_id"} else VALUES[kind] for name, kind in columns.items()}
    with Store() as store:
        store.add(Batch(table, batch))
        assert rows(store, table, batch) == list(zip(*batch.values(), strict=True))


@pytest.mark.parametrize("table", TABLES)
def test_what_is_unknown_is_null_in_every_column_that_may_be(table: str):
    columns = TABLES[table]
    batch: dict[str, Any] = {}
    for name, kind in columns.items():
        known = [10, 11, 12] if name in {"file_id", "series_id"} else VALUES[kind][:3]
        batch[name] = known if name in REQUIRED[table] else [None, known[1], None]
    with Store() as store:
        store.add(Batch(table, batch))
        assert rows(store, table, batch) == list(zip(*batch.values(), strict=True))


def test_nan_is_unknown_in_lists_and_arrays():
    nan = math.nan
    with Store() as store:
        store.add(
            Batch("stat", {"line": [1, 2], "engine": ["0", "0"], "ts": [nan, 2.0], "running": np.array([nan, 3.0])}), file_id=1
        )
        store.add(
            Batch(
                "request",
                {"line": [1, 2], "source": ["span"] * 2, "prompt_tokens": [nan, 5], "output_tokens": np.array([nan, 6])},
            ),
            file_id=1,
        )
        assert store.rows("SELECT ts, running FROM stat ORDER BY line") == [(None, None), (2.0, 3.0)]
        assert store.rows("SELECT prompt_tokens, output_tokens FROM request ORDER BY line") == [(None, None), (5, 6)]


def test_a_value_that_must_be_there_is_missed():
    with Store() as store:
        with pytest.raises(duckdb.ConstraintException):
            store.add(Batch("sample", {"series_id": [1], "ts": [None], "value": [1.0]}))
        assert store.rows("SELECT count(*) FROM sample") == [(0,)]


def test_columns_left_out_are_null_and_constants_fill_all_rows():
    with Store() as store:
        store.add(
            Batch("event", {"line": [1, 2], "kind": ["jit", "death"], "fields": ["{}", "{}"]}), file_id=7, nonsense="ignored"
        )
        assert store.rows("SELECT file_id, line, ts, engine, kind FROM event ORDER BY line") == [
            (7, 1, None, None, "jit"),
            (7, 2, None, None, "death"),
        ]


def test_arrow_numpy_and_lists_are_the_same():
    with Store() as store:
        for column in (
            [1.0, 2.0],
            (1.0, 2.0),
            np.array([1.0, 2.0]),
            np.array([1, 2]),
            pa.array([1.0, 2.0]),
            pa.chunked_array([[1], [2]]),
        ):
            store.add(Batch("sample", {"series_id": [1, 2], "ts": [0.0, 0.0], "value": column}))
        assert store.rows("SELECT DISTINCT series_id, value FROM sample ORDER BY 1") == [(1, 1.0), (2, 2.0)]
        assert store.rows("SELECT count(*) FROM sample") == [(12,)]


def test_large_integers_of_an_array_keep_their_last_digit():
    big = 2**53 + 1
    with Store() as store:
        store.add(Batch("sample", {"series_id": np.array([big]), "ts": [0.0], "value": [1.0]}))
        assert store.rows("SELECT series_id FROM sample") == [(big,)]


def test_no_rows_add_nothing_and_unknown_tables_are_an_error():
    with Store() as store:
        store.add(Batch("sample", {"series_id": [], "ts": [], "value": np.zeros(0)}))
        store.add(Batch("kv_event", {}))
        assert store.rows("SELECT count(*) FROM sample") == [(0,)]
        for name in ("nonsense", "sample; DROP TABLE sample"):
            with pytest.raises(KeyError):
                store.add(Batch(name, {"x": [1]}))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 2048, 2049, 100_000])
def test_rows_keep_their_order_and_their_gaps(size: int):
    texts = [None if at % 3 == 0 else f"t{at}" for at in range(size)]
    numbers = [None if at % 5 == 0 else at for at in range(size)]
    with Store() as store:
        store.add(
            Batch("event", {"line": list(range(size)), "engine": texts, "kind": ["k"] * size, "fields": ["{}"] * size}), file_id=1
        )
        store.add(
            Batch(
                "kv_event",
                {
                    "line": list(range(size)),
                    "ts": [0.0] * size,
                    "engine": ["0"] * size,
                    "source": ["s"] * size,
                    "kind": ["stored"] * size,
                    "seq": numbers,
                },
            ),
            file_id=1,
        )
        assert [row[0] for row in store.rows("SELECT engine FROM event ORDER BY line")] == texts
        assert [row[0] for row in store.rows("SELECT seq FROM kv_event ORDER BY line")] == numbers


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.none() | st.text(),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.floats(allow_nan=False),
            st.none() | st.lists(st.text(), max_size=3),
        ),
        min_size=1,
    ),
)
def test_any_rows_come_back(found: list[tuple[Any, ...]]):
    texts, numbers, floats, lists = (list(column) for column in zip(*found, strict=True))
    count = len(found)
    with SHARED.transaction():
        SHARED.execute("DELETE FROM kv_event")
        SHARED.add(
            Batch(
                "kv_event",
                {
                    "line": list(range(count)),
                    "ts": [0.0] * count,
                    "engine": ["0"] * count,
                    "source": ["s"] * count,
                    "kind": ["k"] * count,
                    "medium": texts,
                    "seq": numbers,
                    "block_hashes": lists,
                },
            ),
            file_id=1,
        )
        SHARED.execute("DELETE FROM stat")
        SHARED.add(Batch("stat", {"line": list(range(count)), "engine": ["0"] * count, "ts": floats}), file_id=1)
    assert SHARED.rows("SELECT medium, seq, block_hashes FROM kv_event ORDER BY line") == list(
        zip(texts, numbers, lists, strict=True)
    )
    assert [row[0] for row in SHARED.rows("SELECT ts FROM stat ORDER BY line")] == floats


SHARED: Final = Store()


def test_lone_surrogates_do_not_break_a_batch():
    with Store() as store:
        store.add(Batch("event", {"line": [1], "kind": ["a\ud800b"], "fields": ["{}"]}), file_id=1)
        assert store.rows("SELECT kind FROM event") == [("a?b",)]


def test_columns_are_arrays_with_nan_for_null():
    with Store() as store:
        store.add(
            Batch(
                "scrape",
                {
                    "instance": ["h:1", None],
                    "ts": [1.0, 2.0],
                    "duration_s": [None, 0.5],
                    "ok": [True, False],
                    "timed": [True, True],
                },
            ),
            file_id=3,
        )
        found = store.columns("SELECT instance, ts, duration_s, ok, file_id FROM scrape ORDER BY ts")
        assert found["instance"].tolist() == ["h:1", None]
        np.testing.assert_array_equal(found["duration_s"], [math.nan, 0.5])
        np.testing.assert_array_equal(found["file_id"], [3.0, 3.0])
        assert found["ok"].dtype == bool
        empty = store.columns("SELECT instance, ts, ok FROM scrape WHERE false")
        assert [len(column) for column in empty.values()] == [0, 0, 0]


def test_parameters_are_bound_by_place_and_by_name():
    with Store() as store:
        assert store.rows("SELECT ? + ?", [1, 2]) == [(3,)]
        assert store.rows("SELECT $a || $b", {"a": "'; ", "b": "--"}) == [("'; --",)]
        assert store.columns("SELECT $a AS a", {"a": math.inf})["a"].tolist() == [math.inf]


def test_the_store_reads_no_files():
    with Store() as store, pytest.raises(duckdb.PermissionException):
        store.rows("SELECT * FROM read_text('pyproject.toml')")


# -- series ------------------------------------------------------------------------------------------------------------


def series(*names: str, instance: str = "h:1") -> dict[str, list[Any]]:
    count = len(names)
    return {
        "instance": [instance] * count,
        "name": list(names),
        "engine": [None] * count,
        "model_name": ["m"] * count,
        "labels": ["{}"] * count,
    }


def test_series_keep_their_numbers(tmp_path: Path):
    path = tmp_path / "a.duckdb"
    with Store(path) as store:
        a, b = store.series_ids(series("a", "b"))
        assert store.series_ids(series("b", "c", "a", "b"))[0] == b
    with Store(path) as store:
        c = store.series_ids(series("c"))[0]
        assert store.series_ids(series("a", "b", "c")) == [a, b, c]
        assert store.series_ids(series("a", instance="h:2"))[0] not in {a, b, c}
        assert store.rows("SELECT count(*), count(DISTINCT series_id) FROM series") == [(4, 4)]


def fail(store: Store, what: Callable[[], Any], error: type[BaseException] = ZeroDivisionError) -> None:
    """Do something in a transaction that then fails."""
    with store.transaction():
        what()
        raise error


def test_unknown_labels_are_a_series_of_their_own():
    with Store() as store:
        known = {"instance": ["h"], "name": ["n"], "engine": ["0"], "model_name": ["m"], "labels": ["{}"]}
        first = store.series_ids(known)
        second = store.series_ids({**known, "engine": [None]})
        assert first != second
        assert store.series_ids({**known, "engine": [None]}) == second


def test_numbers_of_a_failed_transaction_are_not_remembered():
    with Store() as store:
        (kept,) = store.series_ids(series("kept"))
        with pytest.raises(ZeroDivisionError):
            fail(store, lambda: store.series_ids(series("lost")))
        assert store.rows("SELECT name FROM series") == [("kept",)]
        (again,) = store.series_ids(series("lost"))
        assert store.series_ids(series("kept", "lost")) == [kept, again]
        assert store.rows("SELECT count(*) FROM series") == [(2,)]


# -- all or nothing ----------------------------------------------------------------------------------------------------


def test_a_failed_transaction_leaves_nothing_of_any_table():
    with Store() as store:
        store.add(Batch("rejected_line", {"line": [1], "reason": ["before"]}), file_id=1)

        def change() -> None:
            for table, columns in TABLES.items():
                numbers = {"file_id": [5], "series_id": [5]}
                store.add(Batch(table, {name: numbers.get(name, VALUES[kind][1:2]) for name, kind in columns.items()}))
            store.execute("UPDATE rejected_line SET reason = 'changed'")

        with pytest.raises(KeyboardInterrupt):
            fail(store, change, KeyboardInterrupt)
        counts = {table: store.rows(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}
        assert counts == dict.fromkeys(TABLES, 0) | {"rejected_line": 1}
        assert store.rows("SELECT reason FROM rejected_line") == [("before",)]
        with store.transaction():
            store.execute("UPDATE rejected_line SET reason = 'after'")
        assert store.rows("SELECT reason FROM rejected_line") == [("after",)]


def test_an_error_of_the_database_rolls_back_as_well():
    with Store() as store:
        line = Batch("rejected_line", {"line": [1], "reason": ["x"]})

        def change() -> None:
            store.add(line, file_id=1)
            store.execute("INSERT INTO rejected_line VALUES (NULL, NULL, NULL)")

        with pytest.raises(duckdb.ConstraintException):
            fail(store, change)
        assert store.rows("SELECT count(*) FROM rejected_line") == [(0,)]
        store.add(line, file_id=1)


# -- threads and processes ---------------------------------------------------------------------------------------------


def test_threads_write_and_read_at_once():
    errors: list[BaseException] = []
    seen: list[int] = []
    with Store() as store:

        def write(at: int) -> None:
            try:
                for step in range(10):
                    with store.transaction():
                        (number,) = store.series_ids(series(f"s{at}"))
                        store.add(
                            Batch("sample", {"series_id": [number] * 100, "ts": [float(step)] * 100, "value": np.arange(100.0)})
                        )
            except BaseException as error:  # noqa: BLE001 shown below
                errors.append(error)

        def read() -> None:
            try:
                seen.extend(store.rows("SELECT count(*) FROM sample")[0][0] for _ in range(30))
            except BaseException as error:  # noqa: BLE001 shown below
                errors.append(error)

        threads = [threading.Thread(target=write, args=(at,)) for at in range(2)] + [
            threading.Thread(target=read) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert all(count % 100 == 0 for count in seen)  # a transaction is seen whole or not at all
        assert store.rows("SELECT name, count(*) FROM sample JOIN series USING (series_id) GROUP BY 1 ORDER BY 1") == [
            ("s0", 1000),
            ("s1", 1000),
        ]


def test_each_thread_has_its_own_cursor():
    with Store() as store:
        found = [store.cursor(), store.cursor()]
        thread = threading.Thread(target=lambda: found.append(store.cursor()))
        thread.start()
        thread.join()
        assert found[0] is found[1]
        assert found[2] is not found[0]


HOLD: Final = """
import sys
from pathlib import Path
from app.store import Store
store = Store(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
"""


def test_a_file_that_another_process_holds_is_refused_with_what_to_do(tmp_path: Path):
    path = tmp_path / "a.duckdb"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(
            StoreError, match=r"a\.duckdb: cannot be opened .*Another weaklink may hold it: stop it, or give another --store"
        ):
            Store(path)
        other.communicate("\n")
    Store(path).close()


def test_closing_releases_the_file_for_other_processes(tmp_path: Path):
    path = tmp_path / "a.duckdb"
    store = Store(path)
    store.add(Batch("rejected_line", {"line": [1], "reason": ["x"]}), file_id=1)  # a cursor of this thread is open
    store.close()
    done = subprocess.run([sys.executable, "-c", HOLD, str(path)], input="\n", capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("open\n", "")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    (tmp_path / "a.duckdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match=r"a\.duckdb: cannot be opened"):
        Store(tmp_path / "a.duckdb")
    with pytest.raises(StoreError, match=r"cannot be opened \(.*\)\. Give another --store"):
        Store(tmp_path)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(tmp_path / "a.duckdb" / "under-a-file.duckdb")


# -- migrations --------------------------------------------------------------------------------------------------------


def test_migrations_are_applied_once(tmp_path: Path):
    path = tmp_path / "deep" / "er" / "a.duckdb"
    with Store(path) as store:
        assert [row[0] for row in store.rows("SELECT name FROM migration ORDER BY name")] == sql_names("schema")
        store.add(Batch("rejected_line", {"line": [1], "reason": ["kept"]}), file_id=1)
    with Store(path) as store:
        assert [row[0] for row in store.rows("SELECT name FROM migration ORDER BY name")] == sql_names("schema")
        assert store.rows("SELECT reason FROM rejected_line") == [("kept",)]


def test_two_opens_in_one_process_share_the_file(tmp_path: Path):
    path = tmp_path / "a.duckdb"
    with Store(path) as one, Store(path) as two:
        one.add(Batch("rejected_line", {"line": [1], "reason": ["seen"]}), file_id=1)
        assert two.rows("SELECT reason FROM rejected_line") == [("seen",)]


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "a.duckdb"
    with Store(path) as store:
        store.execute("INSERT INTO migration VALUES ('9999_future')")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"a\.duckdb: written by a newer weaklink \(it knows 9999_future\)\. Upgrade"):
            Store(path)
    with duckdb.connect(str(path)) as db:
        assert ("9999_future",) in db.execute("SELECT name FROM migration").fetchall()


def test_a_new_migration_is_applied_to_an_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.duckdb"
    with Store(path) as store:
        store.add(Batch("rejected_line", {"line": [1], "reason": ["kept"]}), file_id=1)
    monkeypatch.setattr(module, "sql_names", lambda folder: [*sql_names(folder), *(["9000_more"] if folder == "schema" else [])])
    monkeypatch.setattr(
        module,
        "sql",
        lambda *name: "CREATE TABLE more (x BIGINT); INSERT INTO more VALUES (1)" if name[1] == "9000_more" else sql(*name),
    )
    for _ in range(2):
        with Store(path) as store:
            assert store.rows("SELECT x FROM more") == [(1,)]
            assert store.rows("SELECT reason FROM rejected_line") == [("kept",)]


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.duckdb"
    Store(path).close()
    with monkeypatch.context() as patch:
        patch.setattr(module, "sql_names", lambda folder: [*sql_names(folder), *(["9000_bad"] if folder == "schema" else [])])
        patch.setattr(
            module, "sql", lambda *name: "CREATE TABLE half (x BIGINT); SELECT nonsense" if name[1] == "9000_bad" else sql(*name)
        )
        with pytest.raises(duckdb.Error):
            Store(path)
    with Store(path) as store:
        assert store.rows("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'half'") == [(0,)]
        assert [row[0] for row in store.rows("SELECT name FROM migration ORDER BY name")] == sql_names("schema")


def test_the_memory_store_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with Store() as one, Store() as two:
        one.add(Batch("rejected_line", {"line": [1], "reason": ["x"]}), file_id=1)
        assert two.rows("SELECT count(*) FROM rejected_line") == [(0,)]
    assert list(tmp_path.iterdir()) == []


def test_every_view_can_be_read_from_an_empty_store():
    with Store() as store:
        for (name,) in store.rows("SELECT view_name FROM duckdb_views() WHERE NOT internal"):
            assert isinstance(store.rows(f"SELECT * FROM {name}"), list)


def test_a_store_closes_in_order_while_somebody_reads(tmp_path: Path):
    path, ended, asked = tmp_path / "a.duckdb", [], threading.Event()

    def page() -> None:
        asked.set()
        try:
            store.rows("SELECT count(*) FROM range(1000000) AS a, range(1000000) AS b WHERE a.range * b.range % 7 = 3")
        except DatabaseError as error:
            ended.append(error)

    store = Store(path)
    reading = threading.Thread(target=page)
    reading.start()
    asked.wait()
    time.sleep(0.3)  # it is in the query
    store.close()
    reading.join(10)
    assert len(ended) == 1
    with pytest.raises(StoreError, match="is being closed"):
        store.cursor()
    with Store(path) as again:
        assert again.notice is None


def test_a_list_keeps_what_its_type_can_hold_and_nothing_endless():
    with Store() as store:
        store.add(Batch("request", {"line": [1], "source": ["client"], "chunk_s": [[0.5, 1e300, -1e39, math.nan, 3.4e38]]}), file_id=1)
        ((chunks,),) = store.rows("SELECT chunk_s FROM request")
    assert chunks == [0.5, None, None, None, pytest.approx(3.4e38)]
