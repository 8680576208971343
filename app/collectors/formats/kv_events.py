"""KV cache events of a vLLM server (`--kv-events-config`), recorded from ZMQ as JSON lines.

A line is {"t", "topic", "endpoint", "seq", "batch": [ts, [events], rank]}: the msgpack batch as plain lists, bytes as hex.

Versions: 0.24+ writes an event as a map with "type", 0.9 to 0.23 as an array with the type first; the fields kept their
order: BlockStored block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium (0.10.2), lora_name (0.14),
extra_keys (0.18), ...; BlockRemoved block_hashes, medium (0.10.2), ...; AllBlocksCleared nothing.

Traps
    - token_ids are the user's text: dropped. extra_keys (cache salt, image and adapter keys) are hashed.
    - Hashes are unsigned 64 bit, or bytes with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0: text here, never a number.
    - Only the first block of a salted prefix carries the salt; the later ones carry it in their parent.
    - A block that goes to another tier (medium CPU) has block_size 0: unknown.
    - A gap in seq is a loss. Each topic and endpoint (one per data-parallel rank) has its own seq.

Source: vllm/distributed/kv_events.py of those versions.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from analyzers.model import Batch
from app.collectors.formats.json_lines import (
    Tail,
    Tally,
    count,
    head_fields,
    integer,
    lines,
    number,
    objects,
    seconds,
    string,
    table,
)

NAME: Final = "kv_events"
ROWS: Final = 1 << 14
EXPECTED: Final = 'expected: {"t", "seq", "batch": [epoch seconds, [events], rank]}'
EXPECTED_EVENT: Final = "expected: events BlockStored, BlockRemoved or AllBlocksCleared with block_hashes"
COLUMNS: Final = ("line", "ts", "engine", "source", "seq", "kind", "block_hashes", "block_size", "medium", "salt")
KINDS: Final = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
FIELDS: Final = {  # of an event that is an array
    "BlockStored": (
        *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"),
    ),
    "BlockRemoved": ("type", "block_hashes", "medium"),
    "AllBlocksCleared": ("type",),
}


def sniff(head: bytes) -> bool:
    """Recognise a numbered batch."""
    fields = head_fields(head)
    batch = fields.get("batch")
    if isinstance(batch, Tail):
        return "seq" in fields and batch.startswith("[")
    return "seq" in fields and isinstance(batch, list) and len(batch) >= 2 and isinstance(batch[1], list)


def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:  # noqa: ARG001 (the times here have their year)
    """Yield batches of kv_event."""
    tally = Tally()
    rows: list[tuple[Any, ...]] = []
    for line, fields in objects(lines(stream, tally), tally):
        batch = fields.get("batch")
        ts, events, rank = [*batch, None, None, None][:3] if isinstance(batch, list) else (None, None, None)
        ts = seconds(fields.get("t")) if seconds(ts) is None else seconds(ts)
        if ts is None or not isinstance(events, list):
            tally.reject(line, EXPECTED)
            continue
        source = f"{_word(fields.get('topic'), '')}/{_word(fields.get('endpoint'), '0')}"
        found = [_event(event) for event in events]
        if None in found:
            tally.reject(line, EXPECTED_EVENT)
        start = (line, ts, str(count(rank) or 0), source, integer(fields.get("seq")))
        rows.extend((*start, *event) for event in found if event is not None)
        if len(rows) >= ROWS:
            yield table("kv_event", COLUMNS, rows)
            rows = []
    if rows:
        yield table("kv_event", COLUMNS, rows)
    yield from tally.batches()


def _event(event: Any) -> tuple[Any, ...] | None:
    """Return kind, block_hashes, block_size, medium, salt; None for what is no event."""
    if isinstance(event, list):
        names = FIELDS.get(event[0]) if event and isinstance(event[0], str) else None
        event = dict(zip(names, event, strict=False)) if names else None
    if not isinstance(event, dict):
        return None
    kind = event.get("type")
    kind = KINDS.get(kind) if isinstance(kind, str) else None
    if kind is None:
        return None
    hashes = None if kind == "cleared" else _hashes(event.get("block_hashes"))
    if hashes is None and kind != "cleared":
        return None
    return kind, hashes, count(event.get("block_size")) or None, string(event.get("medium")), _salt(event.get("extra_keys"))


def _hashes(value: Any) -> list[str] | None:
    """Return the hashes as text; None if there is one that is neither a whole number nor text."""
    if not isinstance(value, list):
        return None
    hashes = [str(item) for item in value if (isinstance(item, int) and not isinstance(item, bool)) or string(item)]
    return hashes if len(hashes) == len(value) else None


def _salt(value: Any) -> str | None:
    """Return a hash of the first extra keys that are not null."""
    keys = next((item for item in value if item is not None), None) if isinstance(value, list) else None
    try:
        return None if keys is None else hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:16]
    except RecursionError:
        return None


def _word(value: Any, default: str) -> str:
    return default if value is None or not (isinstance(value, str) or number(value) is not None) else str(value)
