"""The sample incidents for the tests of alerts: in a store, and as raw scrapes that no code of the program has touched."""

import functools
import gzip
import json
import re
import shutil
import tempfile
from pathlib import Path

from recordings import INCIDENTS

from app.ingest import load
from app.store import Store


@functools.cache
def stored(name: str) -> Store:
    """Return a store with an incident, without the large files that its alert does not need. Alerts may be written into it."""
    left_out = () if name == "prefix_cache_miss" else ("kv_events*", "client*")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        shutil.copytree(INCIDENTS / name, path, ignore=shutil.ignore_patterns(*left_out))
        store = Store()
        assert any(one.added for one in load(store, [path]))
    return store


@functools.cache
def texts(name: str) -> list[tuple[float, str, str]]:
    """Return (when the answer was there, URL, exposition text) of every scrape that succeeded."""
    with gzip.open(INCIDENTS / name / "metrics.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    return [(one["t"] + one.get("dur", 0.0), one["url"], one["text"]) for one in lines if one.get("text")]


def value(text: str, name: str, **labels: str) -> float:
    """Return the sum of the samples of a series with these labels in an exposition text."""
    total = 0.0
    for line in re.findall(rf"^{re.escape(name)}\{{.*$", text, re.MULTILINE):
        if all(f'{key}="{wanted}"' in line for key, wanted in labels.items()):
            total += float(line.rpartition(" ")[2])
    return total
