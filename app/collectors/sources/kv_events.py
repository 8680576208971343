"""The KV cache events of a running vLLM server (`--kv-events-config` with publisher zmq), by a ZMQ subscription. Extra [kv].

A message becomes a recording line {"t", "topic", "endpoint", "seq", "batch"} with token ids already dropped, which the format
`kv_events` reads. A message that is lost leaves a gap in seq; nothing is asked for again.

Source: vllm/distributed/kv_events.py, ZmqEventPublisher: frames topic, seq (8 bytes, big-endian), msgpack of the batch.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_MESSAGE: Final = 64 << 20  # bytes
MAX_WAITING: Final = 100_000  # messages in the socket, while the store is busy
POLL_MS: Final = 200
AT_ONCE: Final = 1000  # messages
TOKEN_IDS: Final = {"BlockStored": 3}  # place of token_ids in an event that is an array
MISSING: Final = "KV events need the extra [kv]: pip install 'weaklink[kv]'"

Line = dict[str, Any]


class KvEventsError(Exception):
    """The subscription cannot be made; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One publisher: of one engine (data-parallel rank r publishes at port + r). `instance`: host:port of its API server."""

    endpoint: str
    topic: str = ""
    instance: str | None = None


def listen(subscription: Subscription, take: Callable[[Sequence[Line]], None], stop: threading.Event) -> None:
    """Hand over what is published, many messages at once, until `stop`. KvEventsError: no pyzmq or msgspec, or a bad endpoint."""
    try:
        import msgspec  # noqa: PLC0415 an extra
        import zmq  # noqa: PLC0415 an extra
    except ImportError as error:
        raise KvEventsError(MISSING) from error
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, MAX_WAITING)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
        socket.setsockopt(zmq.SUBSCRIBE, subscription.topic.encode())
        try:
            socket.connect(subscription.endpoint)
        except zmq.ZMQError as error:
            raise KvEventsError(f"{subscription.endpoint}: expected tcp://host:port ({error})") from error
        decode = msgspec.msgpack.Decoder().decode
        while not stop.is_set():
            if socket.poll(POLL_MS):
                take([line(frames, subscription.endpoint, decode) for frames in _waiting(socket, zmq)])


def _waiting(socket: Any, zmq: Any) -> Iterator[list[bytes]]:
    for _ in range(AT_ONCE):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return


def line(frames: Sequence[bytes], endpoint: str, decode: Callable[[bytes], Any]) -> Line:
    """One message as a recording line; one that is not as vLLM sends it has no batch, which the format rejects."""
    found: Line = {"t": time.time(), "topic": "", "endpoint": endpoint, "seq": None, "batch": None}
    if len(frames) != 3:
        return found
    try:
        batch = decode(frames[2])
    except Exception:  # noqa: BLE001 whatever a decoder makes of foreign bytes
        return found
    found |= {"topic": frames[0].decode("utf-8", "replace"), "seq": int.from_bytes(frames[1], "big", signed=True)}
    if isinstance(batch, list) and len(batch) >= 2 and isinstance(batch[1], list):
        batch[1] = [_without_tokens(event) for event in batch[1]]
        found["batch"] = batch
    return found


def _without_tokens(event: Any) -> Any:
    if isinstance(event, dict):
        return {key: value for key, value in event.items() if key != "token_ids"}
    if isinstance(event, list) and event and isinstance(event[0], str) and len(event) > (at := TOKEN_IDS.get(event[0], 1 << 20)):
        return [*event[:at], [], *event[at + 1 :]]
    return event


def recorded(lines: Sequence[Line]) -> bytes:
    """The lines as a recording holds them: bytes as hex."""
    return b"".join(json.dumps(_plain(one)).encode() + b"\n" for one in lines)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)
