"""Texts of /metrics without a time: in which order they were taken, and which of them are of one process.

Two texts of one server are an interval. Of two servers, or of one before and after a restart, they are not, and nothing in them says
which of both it is: so what is of several processes is kept apart, and asked.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from analyzers.model import Batch

APART_S: Final = 1.0  # between two processes' starts
GROWING: Final = ("_total", "_sum", "_count")

Key = tuple[str, str | None, str | None, str]  # name, engine, model, other labels


@dataclass(slots=True)
class Text:
    """What tells one text from others: the process's start, its counters at first and at last, its models."""

    start: float | None = None
    models: set[str] = field(default_factory=set)
    first: dict[Key, float] = field(default_factory=dict)
    last: dict[Key, float] = field(default_factory=dict)

    def age(self) -> tuple[float, float]:
        """Start of the process and sum of the counters: of two texts the older one has less."""
        return self.start or 0.0, sum(self.last.values())


def seen(batches: Iterable[Batch]) -> Text:
    """The text that a reader's batches are of."""
    text, keys, created = Text(), dict[int, Key](), list[float]()
    for batch in batches:
        if batch.table == "series":
            columns = [batch.columns[name] for name in ("series", "name", "engine", "model_name", "labels")]
            for number, *key in zip(*columns, strict=True):
                keys[number] = (key[0], key[1], key[2], key[3])
                text.models |= {key[2]} - {None}
        elif batch.table == "sample":
            columns = [np.asarray(batch.columns[name]).tolist() for name in ("series", "value")]
            for number, value in zip(*columns, strict=True):
                _note(text, keys[number], value, created)
    if text.start is None and created:
        text.start = min(created)
    return text


def _note(text: Text, key: Key, value: float, created: list[float]) -> None:
    if key[0] == "process_start_time_seconds":
        text.start = max(text.start or 0.0, value)
    elif key[0].endswith("_created"):
        created.append(value)
    elif key[0].endswith(GROWING):
        text.first.setdefault(key, value)
        text.last[key] = value


def processes(texts: Mapping[str, Text]) -> list[list[str]]:
    """The names of the texts of each process, the older text first."""
    groups: list[list[str]] = []
    for name in sorted(texts, key=lambda one: texts[one].age()):
        own = next((group for group in groups if _same(texts[group[-1]], texts[name])), None)
        if own is None:
            groups.append([name])
        else:
            own.append(name)
    return groups


def _same(older: Text, newer: Text) -> bool:
    """Whether both can be of one process: its start if both say it, else nothing that counts has fallen."""
    if older.models and newer.models and older.models.isdisjoint(newer.models):
        return False
    if older.start is not None and newer.start is not None:
        return abs(older.start - newer.start) <= APART_S
    return all(newer.first[key] >= value for key, value in older.last.items() if key in newer.first)


def question(name: str, groups: Sequence[Sequence[str]]) -> str | None:
    """What is asked of the first text of each process, where there are several."""
    if len(groups) < 2 or all(name != group[0] for group in groups):
        return None
    other = next(group[0] for group in groups if group[0] != name)
    return (
        f"of another process than {other}: two servers, or one before and after a restart? Kept apart; if it is one server, "
        f"--instance NAME=HOST:PORT for each"
    )


def places(groups: Sequence[Sequence[str]]) -> dict[str, str]:
    """The server of each text where they are of several processes: called after its first text. Empty for one process."""
    return {name: group[0] for group in groups for name in group} if len(groups) > 1 else {}
