"""The HTTP routes beside the dashboard's pages: health, our own metrics, uploads, logs that are sent, backups."""

import json
import os
import re
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message

from app.access import drained, who_of
from app.backup import BackupError, pieces
from app.collectors.sources import otlp
from app.ingest import BundleError, FileResult, load
from app.live.collect import Collection
from app.live.followed import Sent, take_lines
from app.live.received import take_spans
from app.selfmetrics import exposition
from app.store import Store

MAX_BUNDLE_BYTES: Final = 4 * 1024**3  # of one POST; what it unpacks to has limits of its own (sources/bundle.py)
MAX_PIECE_BYTES: Final = 16 << 20  # of a growing log: more than a sender gathers (sources/tail.py)
MAX_PARTS: Final = 1000  # files of one multipart POST
HEADER: Final = "x-weaklink"  # any value: a page of another site cannot send it without asking first, and is never allowed
AT_ONCE: Final = 4  # uploads on their way: each may fill the folder for temporary files


Endpoint = Callable[[Request], Any]


def routes(store: Store, going: Collection, *, guarded: bool, base: str = "") -> list[Route]:
    """All routes, below `base` where the dashboard is; the health check also at the root, where containers look for it.

    `guarded`: a login is asked for. `going` is what is collected, for the metrics, and whether spans are taken.
    """
    found = [
        Route("/healthz", health(store, guarded=guarded), methods=["GET"]),
        Route("/metrics", metrics(store, going), methods=["GET"]),
        Route("/api/bundles", bundles(store, guarded=guarded), methods=["POST"]),
        Route("/api/logs", logs(store, guarded=guarded), methods=["POST"]),
        Route("/api/backup", backup(store), methods=["POST"]),
        *(otlp.routes(partial(take_spans, store)) if going.spans else ()),
    ]
    if not base:
        return found
    return [found[0], *(Route(f"{base}{one.path}", one.endpoint, methods=list(one.methods or ())) for one in found)]


def health(store: Store, *, guarded: bool = False) -> Endpoint:
    """GET /healthz."""

    async def answer(request: Request) -> Response:
        """Whether the store answers, and how much is in it."""
        try:
            held = await run_in_threadpool(store.rows, "SELECT count(*) FROM source_file")
        except Exception as error:  # noqa: BLE001 whatever it is, the answer is that it does not work
            return JSONResponse({"status": "failed", "error": type(error).__name__}, 503)
        if not guarded or who_of(request.headers).user:
            return JSONResponse({"status": "ok", "version": _version(), "files": held[0][0]})
        return JSONResponse({"status": "ok"})  # to a stranger, that it works

    return answer


def _version() -> str:
    try:
        return version("weaklink")
    except PackageNotFoundError:
        return "unknown"


def bundles(store: Store, *, guarded: bool) -> Endpoint:
    """POST /api/bundles."""
    lock, free = threading.Lock(), threading.BoundedSemaphore(AT_ONCE)

    async def answer(request: Request) -> Response:
        """Load an upload: multipart (several files are one bundle) or a raw body with ?name=. The result of each file as JSON."""
        if not _meant(request, guarded=guarded):
            await drained(request, request.receive)
            return _not_meant("upload")
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > MAX_BUNDLE_BYTES:
            await drained(request, request.receive)
            return _too_large()
        if why := store.full():
            await drained(request, request.receive)
            return JSONResponse({"error": why}, 507)
        if not free.acquire(blocking=False):
            await drained(request, request.receive)
            return JSONResponse({"error": f"{AT_ONCE} uploads are on their way; try again"}, 503, {"Retry-After": "10"})
        try:
            return await take(request)
        finally:
            free.release()

    async def take(request: Request) -> Response:
        with tempfile.TemporaryDirectory(prefix="weaklink-") as folder:
            try:
                path = await _received(request, Path(folder))
                results = await run_in_threadpool(_load, store, lock, path)
            except _TooLargeError:
                await drained(request, request.receive)
                return _too_large()
            except (ValueError, MultiPartException) as error:
                return JSONResponse({"error": str(error)}, 400)
            except BundleError as error:
                return JSONResponse({"error": str(error).replace(f"{folder}{os.sep}", "")}, 422)
        said = f"{path.name}: {sum(one.added for one in results)} of {len(results)} files added"
        await run_in_threadpool(store.note, "upload", said, who_of(request.headers).user or None)
        return JSONResponse(json.loads(json.dumps({"files": [asdict(one) for one in results]})))

    return answer


def _meant(request: Request, *, guarded: bool) -> bool:
    """Whether whoever sent this meant it: no page of another site can send our header, or a token that it does not know."""
    bearer = guarded and request.headers.get("authorization", "").lower().startswith("bearer ")
    return bearer or HEADER in request.headers


def _not_meant(what: str) -> Response:
    return JSONResponse(
        {"error": f"send the header {HEADER.title()}: {what} (any value): it shows that no other site's page sent this"}, 403
    )


def logs(store: Store, *, guarded: bool) -> Endpoint:
    """POST /api/logs."""
    known: dict[str, Sent] = {}

    async def answer(request: Request) -> Response:
        """Store a piece of a growing log: ?log=NAME&from=BYTE&piece=ID, and &server=HOST:PORT. How far it is stored as JSON."""
        if not _meant(request, guarded=guarded):
            await drained(request, request.receive)
            return _not_meant("log")
        asked = request.query_params
        name, piece, start = asked.get("log", "")[:500], asked.get("piece", "")[:100], asked.get("from", "0")
        if not name.strip() or not piece or not re.fullmatch(r"[0-9]{1,18}", start):
            await drained(request, request.receive)
            return JSONResponse({"error": "expected ?log=NAME&from=BYTE&piece=ID, as `weaklink ingest --to` sends them"}, 400)
        lines = bytearray()
        async for part in request.stream():
            lines += part
            if len(lines) > MAX_PIECE_BYTES:
                await drained(request, request.receive)
                return JSONResponse({"error": f"larger than {MAX_PIECE_BYTES:,} bytes: send it in pieces"}, 413)
        if why := store.full():
            return JSONResponse({"error": why}, 507)
        server = asked.get("server", "")[:300] or None
        return JSONResponse(await run_in_threadpool(take_lines, store, known, name, server, bytes(lines), int(start), piece))

    return answer


def metrics(store: Store, going: Collection) -> Endpoint:
    """GET /metrics."""

    async def answer(_: Request) -> Response:
        """What the program says of itself, as Prometheus reads it."""
        text = await run_in_threadpool(exposition, store, going)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    return answer


def backup(store: Store) -> Endpoint:
    """POST /api/backup."""

    async def answer(request: Request) -> Response:
        """A backup of the store, as it comes. It ends early where it fails: whoever takes it checks that it is whole."""
        if HEADER not in request.headers:
            return JSONResponse({"error": f"send the header {HEADER.title()}: backup (any value)"}, 403)
        found = pieces(store)
        try:
            first = await run_in_threadpool(next, found)
        except BackupError as error:
            return JSONResponse({"error": str(error)}, 409)
        await run_in_threadpool(store.note, "backup", "sent", who_of(request.headers).user or None)
        return StreamingResponse(_all(first, found), media_type="application/x-tar")

    return answer


def _all(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


class _TooLargeError(Exception):
    """More bytes came than MAX_BUNDLE_BYTES."""


def _too_large() -> Response:
    return JSONResponse({"error": f"larger than {MAX_BUNDLE_BYTES:,} bytes: load it with `weaklink load PATH`"}, 413)


def _load(store: Store, lock: threading.Lock, path: Path) -> list[FileResult]:
    with lock:
        return load(store, [path])


async def _received(request: Request, folder: Path) -> Path:
    """Write the upload to disk as it comes: the file, or the folder of several. ValueError says what was expected."""
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return await _parts(request, folder)
    name = file_name(request.query_params.get("name", ""))
    if not name:
        raise ValueError("a raw body needs ?name=FILE (its ending is not trusted, but the bundle is called so)")
    path, seen = folder / name, 0
    with path.open("wb") as file:
        async for piece in request.stream():
            seen += len(piece)
            if seen > MAX_BUNDLE_BYTES:
                raise _TooLargeError
            await run_in_threadpool(file.write, piece)
    if not seen:
        raise ValueError("the body is empty: send the bundle's bytes")
    return path


async def _parts(request: Request, folder: Path) -> Path:
    """The files of a multipart body: one is itself the bundle, several are a bundle together."""
    seen = 0

    async def receive() -> Message:
        nonlocal seen
        message = await request.receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BUNDLE_BYTES:
            raise _TooLargeError
        return message

    counted = Request(request.scope, receive)
    form = await MultiPartParser(counted.headers, counted.stream(), max_files=MAX_PARTS, max_fields=MAX_PARTS).parse()
    try:
        given = [one for _, one in form.multi_items() if isinstance(one, UploadFile)]
        if not given:
            raise ValueError("no file in the form: send at least one part with a filename")
        place = folder / f"upload-{secrets.token_hex(4)}"
        place.mkdir()
        for at, one in enumerate(given):
            path = place / (file_name(one.filename or "") or f"file-{at}")
            path = path if not path.exists() else place / f"{at}-{path.name}"
            with path.open("wb") as file:
                while piece := await one.read(1 << 20):
                    await run_in_threadpool(file.write, piece)
    finally:
        await form.close()
    held = list(place.iterdir())
    return held[0] if len(held) == 1 else place


def file_name(given: str) -> str:
    """The last part of a name as a client sends it, with nothing that a path could be made of; "" where none is left."""
    last = PurePosixPath(given.replace("\\", "/")).name
    kept = "".join(sign for sign in last if sign.isprintable() and sign not in "/\0").strip()
    return "" if kept in {"", ".", ".."} else kept[-120:]
