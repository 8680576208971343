"""The store: with queries/ the only place that knows DuckDB.

One process holds the file (DuckDB locks it against every other, even to read), one cursor serves each thread.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import duckdb
import numpy as np
import pyarrow as pa

from analyzers.model import Batch

MEMORY = ":memory:"
DEFAULT_MEMORY_LIMIT = "2GB"  # DuckDB's own default is 80 % of the machine, which belongs to the server next door

FEW_WORDS = 64  # texts of a column that are worth encoding once

_TYPES: Mapping[str, pa.DataType] = {
    "VARCHAR": pa.string(),
    "DOUBLE": pa.float64(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR[]": pa.list_(pa.string()),
    "FLOAT[]": pa.list_(pa.float32()),
}


class StoreError(Exception):
    """The store cannot be opened or used; the message says what to do."""


def sql(*path: str) -> str:
    """Read one file of queries/: the folders, then the name without suffix ("evidence", "slots")."""
    *folders, name = path
    return files("queries").joinpath(*folders, f"{name}.sql").read_text(encoding="utf-8")


def sql_names(folder: str) -> list[str]:
    """Names (without suffix) of the files in a folder of queries/, in name order."""
    return sorted(
        entry.name.removesuffix(".sql") for entry in files("queries").joinpath(folder).iterdir() if entry.name.endswith(".sql")
    )


class Store:
    """Recordings in DuckDB: `add` puts rows in, `rows` takes rows out.

    `path` None keeps everything in memory. Raises StoreError where the file is locked by another process, or was written
    by a newer schema.
    """

    def __init__(self, path: Path | None = None, *, memory_limit: str = DEFAULT_MEMORY_LIMIT, threads: int = 2) -> None:
        self.path = path
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = duckdb.connect(str(path) if path else MEMORY, config={"memory_limit": memory_limit, "threads": threads})
        except (duckdb.Error, OSError) as error:
            why = str(error).splitlines()[0]
            what = "Another weaklink may hold it: stop it, or give another --store." if "lock" in why else "Give another --store."
            raise StoreError(f"{path}: cannot be opened ({why}). {what}") from error
        self._local = threading.local()
        self._columns: dict[str, dict[str, pa.DataType]] = {}
        self._series: dict[tuple[Any, ...], int] | None = None
        self.lock = threading.RLock()
        try:
            self._migrate()
        except BaseException:
            self._db.close()
            raise
        self._db.execute("SET enable_external_access=false")

    def cursor(self) -> Any:
        """Return the thread's own cursor: DuckDB 2 refuses a connection that two threads use at once."""
        if not hasattr(self._local, "cursor"):
            self._local.cursor = self._db.cursor()
        return self._local.cursor

    def close(self) -> None:
        """Write what is pending and release the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- schema ---------------------------------------------------------------------------------------------------
    def _migrate(self) -> None:
        """Apply the migrations that are missing, each in one transaction with the record that it ran; then the views."""
        db = self._db
        db.execute("CREATE TABLE IF NOT EXISTS migration (name VARCHAR PRIMARY KEY)")
        done = {row[0] for row in db.execute("SELECT name FROM migration").fetchall()}
        known = sql_names("schema")
        newer = sorted(done - set(known))
        if newer:
            raise StoreError(
                f"{self.path}: written by a newer weaklink (it knows {newer[-1]}). Upgrade weaklink, or give another --store."
            )
        for name in known:
            if name not in done:
                db.execute("BEGIN")
                db.execute(sql("schema", name))
                db.execute("INSERT INTO migration VALUES (?)", [name])
                db.execute("COMMIT")
        for name in sql_names("views"):
            db.execute(sql("views", name))

    def _types(self, table: str) -> dict[str, pa.DataType]:
        if table not in self._columns:
            found = (
                self.cursor()
                .execute(
                    "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = ? AND table_schema = 'main'",
                    [table],
                )
                .fetchall()
            )
            if not found:
                raise KeyError(table)
            self._columns[table] = {name: _TYPES[kind] for name, kind in found}
        return self._columns[table]

    # -- in ---------------------------------------------------------------------------------------------------------
    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing: an exception inside leaves the store as it was."""
        with self.lock:
            cursor = self.cursor()
            cursor.execute("BEGIN")
            try:
                yield
            except BaseException:
                self._series = None  # numbers handed out inside are gone with the rows
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    def add(self, batch: Batch, **constant: Any) -> None:
        """Append rows; `constant` gives columns that are the same in all of them (file_id)."""
        self.insert(batch.table, self.table(batch), **constant)

    def table(self, batch: Batch) -> pa.Table:
        """The rows of a batch as an Arrow table with the types of its table of the store. KeyError: no such table or column."""
        types = self._types(batch.table)
        arrays = {name: _arrow(values, types[name]) for name, values in batch.columns.items()}
        return pa.Table.from_arrays(list(arrays.values()), names=list(arrays))

    def insert(self, name: str, rows: pa.Table, **constant: Any) -> None:
        """Append the rows of an Arrow table; constants as in `add`."""
        if not rows.num_rows:
            return
        fixed = {column: value for column, value in constant.items() if column in self._types(name)}
        names = rows.column_names
        into, taken = ", ".join([*names, *fixed]), ", ".join([*names, *(f"${column}" for column in fixed)])
        cursor = self.cursor()
        cursor.register("incoming", rows)
        cursor.execute(f"INSERT INTO {name} ({into}) SELECT {taken} FROM incoming", fixed)
        cursor.unregister("incoming")

    def series_ids(self, columns: Mapping[str, Sequence[Any]]) -> list[int]:
        """Numbers of series (columns instance, name, engine, model_name, labels), new ones entered."""
        cursor = self.cursor()
        if self._series is None:
            known = cursor.execute("SELECT instance, name, engine, model_name, labels, series_id FROM series").fetchall()
            self._series = {tuple(row[:5]): row[5] for row in known}
        keys = list(zip(*(columns[c] for c in ("instance", "name", "engine", "model_name", "labels")), strict=True))
        new = list(dict.fromkeys(key for key in keys if key not in self._series))
        if new:
            ids = [row[0] for row in cursor.execute("SELECT nextval('series_id_seq') FROM range(?)", [len(new)]).fetchall()]
            parts = list(zip(*new, strict=True))
            self.add(
                Batch(
                    "series",
                    {
                        "series_id": ids,
                        "instance": parts[0],
                        "name": parts[1],
                        "engine": parts[2],
                        "model_name": parts[3],
                        "labels": parts[4],
                    },
                )
            )
            self._series.update(zip(new, ids, strict=True))
        return [self._series[key] for key in keys]

    def execute(self, statement: str, params: Sequence[Any] | None = None) -> None:
        """Run a statement that returns nothing."""
        self.cursor().execute(statement, params or [])

    # -- out --------------------------------------------------------------------------------------------------------
    def rows(self, statement: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query as tuples: for few rows."""
        found: list[tuple[Any, ...]] = self.cursor().execute(statement, params or []).fetchall()
        return found

    def columns(self, statement: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> dict[str, np.ndarray[Any, Any]]:
        """All rows of a query as numpy arrays by column; NULL numbers are NaN, other NULLs None."""
        found = self.cursor().execute(statement, params or []).fetchnumpy()
        return {name: _plain(values) for name, values in found.items()}

    def frame(self, statement: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> Any:
        """All rows of a query as a pandas DataFrame: for the dashboard."""
        return self.cursor().execute(statement, params or []).df()


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of the same columns, one after the other."""
    return pa.concat_tables(tables)


def _arrow(values: Any, kind: pa.DataType) -> pa.Array:  # noqa: PLR0911 one return a type
    """An Arrow array without pa.array(), which would import pandas (half of what `analyze` costs)."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(kind)
    length = len(values)
    if pa.types.is_string(kind):
        words = set(values) if length > FEW_WORDS and isinstance(values, list) else ()
        if 0 < len(words) <= FEW_WORDS and None not in words:  # the engines of a log, mostly
            return _repeated(values, sorted(words), kind)
        texts = [b"" if value is None else str(value).encode("utf-8", "replace") for value in values]
        return pa.Array.from_buffers(
            kind, length, [_valid(values), *_offsets([len(text) for text in texts]), pa.py_buffer(b"".join(texts))]
        )
    if pa.types.is_list(kind):
        inner = _arrow([item for value in values if value is not None for item in value], kind.value_type)
        sizes = [0 if value is None else len(value) for value in values]
        return pa.Array.from_buffers(kind, length, [_valid(values), *_offsets(sizes)], children=[inner])
    if pa.types.is_boolean(kind) and isinstance(values, np.ndarray) and values.dtype.kind == "b":
        return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(np.packbits(values, bitorder="little"))])
    if pa.types.is_boolean(kind):
        bits = np.packbits([bool(value) for value in values], bitorder="little")
        return pa.Array.from_buffers(kind, length, [_valid(values), pa.py_buffer(bits)])
    if not isinstance(values, np.ndarray):
        valid = _valid(values)
        fill = [0 if value is None or value != value else value for value in values] if valid is not None else values  # noqa: PLR0124
        data = np.asarray(fill, dtype=kind.to_pandas_dtype())
    elif values.dtype.kind in "iu" and pa.types.is_integer(kind):
        valid, data = None, values.astype(kind.to_pandas_dtype())  # not by way of floats, which hold 53 bits
    else:
        data = np.asarray(values, dtype=float)
        missing = np.isnan(data)
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
        data = np.where(missing, 0.0, data).astype(kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, length, [valid, pa.py_buffer(np.ascontiguousarray(data))])


def _repeated(values: list[str], words: list[str], kind: pa.DataType) -> pa.Array:
    """Texts of which few differ, each of them encoded once."""
    texts = {word: str(word).encode("utf-8", "replace") for word in words}
    if len(words) == 1:
        text = texts[words[0]]
        offsets = np.arange(len(values) + 1, dtype=np.int32) * len(text)
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(offsets), pa.py_buffer(text * len(values))])
    found = list(map(texts.__getitem__, values))
    return pa.Array.from_buffers(kind, len(values), [None, *_offsets(list(map(len, found))), pa.py_buffer(b"".join(found))])


def _valid(values: Sequence[Any]) -> pa.Buffer | None:
    """Validity bits; None where nothing is NULL. NaN stands for unknown, as None does."""
    known = [value is not None and value == value for value in values]  # noqa: PLR0124 only NaN differs from itself
    return None if all(known) else pa.py_buffer(np.packbits(known, bitorder="little"))


def _offsets(sizes: Sequence[int]) -> tuple[pa.Buffer]:
    return (pa.py_buffer(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int32)),)


def _plain(values: Any) -> np.ndarray[Any, Any]:
    """A column as DuckDB hands it (masked where NULL): numbers as floats with NaN, booleans as they are, else objects."""
    array: Any = np.ma.asarray(values)
    if array.dtype.kind == "b" and not np.ma.is_masked(array):
        return np.asarray(array.data)
    if array.dtype.kind in "iufb":
        return np.asarray(array.astype(float).filled(np.nan))
    plain = np.array(array.data, dtype=object)
    plain[np.ma.getmaskarray(array)] = None
    return plain
