"""What servers send into the store: spans (OTLP) and KV events (ZMQ)."""

import io
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from analyzers.model import Batch
from app.collectors.formats import MAX_REJECTED, otlp_spans, prometheus_text
from app.collectors.formats import kv_events as kv_events_format
from app.collectors.sources import kv_events
from app.collectors.sources.otlp import OtlpError
from app.live import LIVE, Background, file_of
from app.store import Store


def take_spans(store: Store, export: Mapping[str, Any], sender: str | None) -> int:
    """Store the request spans of one OTLP export; how many were new. A repeated export adds nothing. OtlpError: the disk is nearly full."""
    batches = {batch.table: batch.columns for batch in otlp_spans.read(io.BytesIO(json.dumps(export).encode()), time.time())}
    if "request" not in batches:
        return 0
    if why := store.full():
        raise OtlpError(why, 503)
    with store.transaction():
        file_id = file_of(store, LIVE, "spans", otlp_spans.NAME, None)
        base = store.rows("SELECT lines FROM source_file WHERE file_id = ?", [file_id])[0][0]
        rows = [dict(zip(batches["request"], row, strict=True)) for row in zip(*batches["request"].values(), strict=True)]
        known = set(
            store.rows(
                "SELECT request_id, arrival_ts FROM request WHERE source = 'span' AND arrival_ts BETWEEN ? AND ?",
                [min(row["arrival_ts"] for row in rows), max(row["arrival_ts"] for row in rows)],
            )
        )
        new = [row for row in rows if (row["request_id"], row["arrival_ts"]) not in known]
        places = {pid: _server_of(store, pid, sender) for pid in {row["pid"] for row in new}}
        for at, row in enumerate(new):
            row.update(line=base + at + 1, instance=places[row["pid"]])
        if new:
            store.add(Batch("request", {name: [row[name] for row in new] for name in new[0]}), file_id=file_id)
        rejected = batches["source_file"]["rejected"][0]
        store.execute(
            "UPDATE source_file SET lines = lines + ?, rejected = rejected + ? WHERE file_id = ?", [len(new), rejected, file_id]
        )
    return len(new)


def _server_of(store: Store, pid: str | None, sender: str | None) -> str | None:
    """Whose spans these are: the server whose log has this process id, else the only one scraped at the sender's address, or at all."""
    logged = store.rows("SELECT DISTINCT instance FROM source_file WHERE pid = ? AND instance IS NOT NULL", [pid]) if pid else []
    if len(logged) == 1:
        return str(logged[0][0])
    scraped = [
        str(row[0])
        for row in store.rows(
            "SELECT DISTINCT instance FROM source_file WHERE bundle = ? AND format = ?", [LIVE, prometheus_text.NAME]
        )
    ]
    local = {sender, *({"localhost", "127.0.0.1", "[::1]"} if sender in {"127.0.0.1", "::1"} else set())}
    near = [one for one in scraped if one.rpartition(":")[0] in local]
    return near[0] if len(near) == 1 else scraped[0] if len(scraped) == 1 else None


def events(subscription: kv_events.Subscription) -> Background:
    """A loop that stores what a server publishes of its KV cache."""

    def run(store: Store, stop: threading.Event) -> None:
        kv_events.listen(subscription, lambda lines: put_events(store, subscription, lines), stop)

    return run


def put_events(store: Store, subscription: kv_events.Subscription, lines: Sequence[kv_events.Line]) -> None:
    """Store messages in one transaction, numbered in the order in which they came."""
    if store.full():
        return  # the gap in their numbers shows it
    batches = list(kv_events_format.read(io.BytesIO(kv_events.recorded(lines)), time.time()))
    with store.transaction():
        file_id = file_of(store, LIVE, f"kv_events {subscription.endpoint}", kv_events_format.NAME, subscription.instance)
        base, instance = store.rows("SELECT lines, instance FROM source_file WHERE file_id = ?", [file_id])[0]
        if instance is None:
            instance = _server_of(store, None, None)
        for batch in batches:
            columns = dict(batch.columns)
            if batch.table == "source_file":
                store.execute(
                    "UPDATE source_file SET lines = lines + ?, rejected = rejected + ?, instance = ? WHERE file_id = ?",
                    [columns["lines"][0], columns["rejected"][0], instance, file_id],
                )
                continue
            columns["line"] = [base + line for line in columns["line"]]
            if batch.table == "kv_event":
                store.add(Batch("kv_event", columns), file_id=file_id, instance=instance)
            elif store.rows("SELECT count(*) FROM rejected_line WHERE file_id = ?", [file_id])[0][0] < MAX_REJECTED:
                store.add(Batch(batch.table, columns), file_id=file_id)
