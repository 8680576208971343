"""KV events from a real ZMQ publisher, as vLLM sends them: arrays to 0.23, maps since 0.24."""

import contextlib
import io
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from ports import free_port

from app.collectors.formats import kv_events as kv_events_format
from app.collectors.sources.kv_events import KvEventsError, Subscription, line, listen, recorded
from app.live.received import events, put_events
from app.store import Store

BIG = (1 << 64) - 1
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), BIG) | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)
EVENT = st.lists(ANY, max_size=5).map(lambda rest: ["BlockStored", [1], None, [31337], *rest]) | st.just(
    {"type": "BlockStored", "token_ids": [31337]}
)
PACKED = st.tuples(ANY, st.lists(EVENT | ANY, max_size=3)).map(lambda batch: msgspec.msgpack.encode(list(batch)))
ARRAYS = [["BlockStored", [1, BIG], None, [11, 12], 16, None, "GPU", None, [["salt"], None]], ["BlockRemoved", [1], "GPU"]]
MAPS = [
    {
        "type": "BlockStored",
        "block_hashes": [b"\x01\xff", b"\x02"],
        "parent_block_hash": b"\x00",
        "token_ids": [13],
        "block_size": 16,
    },
    {"type": "AllBlocksCleared"},
]
ROWS = "SELECT line, ts, engine, source, seq, kind, block_hashes, block_size, medium, salt IS NOT NULL FROM kv_event ORDER BY line, kind"


def frames(seq: int, ts: float, happened: list[Any], rank: int | None = 0, topic: str = "kv") -> list[bytes]:
    return [topic.encode(), seq.to_bytes(8, "big", signed=True), msgspec.msgpack.encode([ts, happened, rank])]


@contextlib.contextmanager
def publishing() -> Iterator[tuple[str, zmq.Socket]]:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # each subscription is told, also of a topic that another has
        socket.bind(endpoint)
        yield endpoint, socket


def subscription_of(socket: zmq.Socket) -> None:
    """Wait until somebody has subscribed."""
    while True:
        assert socket.poll(10_000)
        if socket.recv().startswith(b"\x01"):
            return


@contextlib.contextmanager
def subscribed(store: Store, subscription: Subscription, socket: zmq.Socket) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=events(subscription), args=(store, stop))
    thread.start()
    try:
        subscription_of(socket)
        yield
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()


def arrived(store: Store, count: int) -> None:
    for _ in range(200):
        if store.rows("SELECT count(*) FROM kv_event")[0][0] >= count:
            return
        time.sleep(0.05)
    raise AssertionError(store.rows(ROWS))


def test_arrays_and_maps_are_the_rows_of_the_format():
    with publishing() as (endpoint, socket), Store() as store:
        with subscribed(store, Subscription(endpoint, "kv", "h:1"), socket):
            socket.send_multipart(frames(0, 1795953600.5, ARRAYS))
            socket.send_multipart(frames(0, 1795953600.5, ARRAYS, topic="other"))
            socket.send_multipart(frames(2, 1795953601.5, MAPS, rank=3))
            arrived(store, 4)
        source = f"kv/{endpoint}"
        assert store.rows(ROWS) == [
            (1, 1795953600.5, "0", source, 0, "removed", ["1"], None, "GPU", False),
            (1, 1795953600.5, "0", source, 0, "stored", ["1", str(BIG)], 16, "GPU", True),
            (2, 1795953601.5, "3", source, 2, "cleared", None, None, None, False),
            (2, 1795953601.5, "3", source, 2, "stored", ["01ff", "02"], 16, None, False),
        ]
        assert store.rows("SELECT DISTINCT instance FROM kv_event") == [("h:1",)]


def test_lines_go_on_after_a_restart():
    with publishing() as (endpoint, socket), Store() as store:
        for seq in (0, 1):
            with subscribed(store, Subscription(endpoint), socket):
                socket.send_multipart(frames(seq, 1795953600.0 + seq, ARRAYS))
                arrived(store, 2 * (seq + 1))
        assert store.rows("SELECT DISTINCT line, seq FROM kv_event ORDER BY line") == [(1, 0), (2, 1)]
        assert store.rows("SELECT count(*), max(lines) FROM source_file") == [(1, 2)]


def test_foreign_messages_are_counted_and_end_nothing():
    with publishing() as (endpoint, socket), Store() as store:
        with subscribed(store, Subscription(endpoint), socket):
            for strange in ([b"x"], [b"", b"", b""], [b"", b"\0" * 8, b"\xc1"], frames(1, 1.0, [["Unknown"]])):
                socket.send_multipart(strange)
            socket.send_multipart(frames(5, 1795953600.0, ARRAYS))
            arrived(store, 2)
        assert store.rows("SELECT lines, rejected FROM source_file") == [(5, 4)]
        assert store.rows("SELECT line FROM rejected_line ORDER BY line") == [(1,), (2,), (3,), (4,)]


def test_token_ids_are_never_in_a_line():
    taken: list[dict] = []
    stop = threading.Event()
    with publishing() as (endpoint, socket):
        thread = threading.Thread(target=listen, args=(Subscription(endpoint), taken.extend, stop))
        thread.start()
        subscription_of(socket)
        socket.send_multipart(frames(0, 1.0, [*ARRAYS, *MAPS]))
        while not taken:
            time.sleep(0.01)
        stop.set()
        thread.join()
    assert "11" not in str(taken[0]["batch"])
    assert "token_ids" not in str(taken)
    assert taken[0]["batch"][1][0][4:7] == [16, None, "GPU"]


@given(st.lists(st.binary(max_size=60), max_size=4) | st.tuples(st.binary(), st.binary(max_size=9), PACKED).map(list))
@settings(max_examples=150, deadline=None)
def test_any_frames_are_a_line_that_the_format_reads(message: list[bytes]):
    text = recorded([line(message, "tcp://h:1", msgspec.msgpack.Decoder().decode)])
    batches = {batch.table: batch.columns for batch in kv_events_format.read(io.BytesIO(text), 1.8e9)}
    assert batches["source_file"]["lines"] == [1]
    assert b"31337" not in text


def test_a_bad_endpoint_is_named():
    with pytest.raises(KvEventsError, match="nowhere: expected tcp://host:port"):
        listen(Subscription("nowhere"), lambda _: None, threading.Event())


def test_no_message_is_no_row():
    with Store() as store:
        put_events(store, Subscription("tcp://h:1"), [])
        assert store.rows("SELECT count(*) FROM kv_event") == [(0,)]
