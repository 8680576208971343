"""Python and numpy values to Arrow columns, and DuckDB's columns to numpy: what the store does with every batch."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

LARGEST: Final = float(np.finfo(np.float32).max)
FEW_WORDS: Final = 64  # texts of a column that are worth encoding once


def arrow(values: Any, kind: pa.DataType) -> pa.Array:  # noqa: PLR0911 one return a type
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
        inner = arrow([item for value in values if value is not None for item in value], kind.value_type)
        sizes = [0 if value is None else len(value) for value in values]
        return pa.Array.from_buffers(kind, length, [_valid(values), *_offsets(sizes)], children=[inner])
    if pa.types.is_boolean(kind) and isinstance(values, np.ndarray) and values.dtype.kind == "b":
        return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(np.packbits(values, bitorder="little"))])
    if pa.types.is_boolean(kind):
        bits = np.packbits([bool(value) for value in values], bitorder="little")
        return pa.Array.from_buffers(kind, length, [_valid(values), pa.py_buffer(bits)])
    if not isinstance(values, np.ndarray):
        if kind == pa.float32():  # what is beyond is nothing that was measured: unknown, not endless
            values = [None if value is not None and abs(value) > LARGEST else value for value in values]
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


def plain(values: Any) -> np.ndarray[Any, Any]:
    """A column as DuckDB hands it (masked where NULL): numbers as floats with NaN, booleans as they are, else objects."""
    array: Any = np.ma.asarray(values)
    if array.dtype.kind == "b" and not np.ma.is_masked(array):
        return np.asarray(array.data)
    if array.dtype.kind in "iufb":
        return np.asarray(array.astype(float).filled(np.nan))
    objects = np.array(array.data, dtype=object)
    objects[np.ma.getmaskarray(array)] = None
    return objects
