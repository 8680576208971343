"""Backups: one .tar of the store as it was at one instant, made while it is in use; and a store from a backup.

The tables go out as Parquet files within one transaction, closed days as they lie there, with a manifest of names, rows and
hashes. So a backup depends on no version of DuckDB's file, and one of an older schema is migrated when it is restored.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import tarfile
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Final

from app.store import STAGING, DatabaseError, Store, StoreError, sql_names

FORMAT: Final = 1
NAME: Final = re.compile(r"(manifest\.json|tables/[a-z_]+\.parquet|(sample|step|kv_event)/[0-9-]+\.parquet)")
_CHUNK: Final = 1 << 20
_ONE: Final = threading.Lock()  # one backup at a time


class BackupError(Exception):
    """The backup cannot be made or used; the message says why."""


def pieces(store: Store) -> Iterator[bytes]:
    """The bytes of a backup, as they come. BackupError: another one is under way, or the store is in memory."""
    if store.segments is None:
        raise BackupError("a store in memory has no backup")
    if not _ONE.acquire(blocking=False):
        raise BackupError("another backup is being made")
    folder = store.segments / STAGING / f"backup-{os.getpid()}"
    try:
        shutil.rmtree(folder, ignore_errors=True)
        manifest = _staged(store, folder)
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        manifest["files"] = {str(file.relative_to(folder)): _hash(file) for file in files}
        body = json.dumps(manifest, indent=1).encode()
        yield _header("manifest.json", len(body)) + body + _padding(len(body))
        for file in files:
            size = file.stat().st_size
            yield _header(str(file.relative_to(folder)), size)
            with file.open("rb") as stream:
                while piece := stream.read(_CHUNK):
                    yield piece
            yield _padding(size)
        yield bytes(2 * tarfile.BLOCKSIZE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _ONE.release()


def write(found: Iterator[bytes], out: Path) -> int:
    """Write a backup to a file, which is there only when it is whole; its bytes."""
    half = out.with_name(f"{out.name}.part")
    try:
        with half.open("wb") as stream:
            for piece in found:
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
        half.replace(out)
    except BaseException:
        half.unlink(missing_ok=True)
        raise
    return out.stat().st_size


def _staged(store: Store, folder: Path) -> dict[str, Any]:
    """Write the tables into a folder, link the closed days beside them: all of one instant."""
    assert store.segments is not None
    (folder / "tables").mkdir(parents=True)
    with store.snapshot():
        names = [
            row[0]
            for row in store.rows(
                "SELECT table_name FROM duckdb_tables() WHERE NOT temporary AND NOT internal AND database_name = current_database() ORDER BY 1"
            )
        ]
        tables = {
            name: store.rows(f"COPY {name} TO '{_quoted(folder / 'tables' / name)}.parquet' (FORMAT parquet)")[0][0]
            for name in names
        }
        migrations = [row[0] for row in store.rows("SELECT name FROM migration ORDER BY name")]
        sequences = dict(
            store.rows(
                "SELECT sequence_name, coalesce(last_value, 0) FROM duckdb_sequences() WHERE database_name = current_database() ORDER BY 1"
            )
        )
        for (name,) in store.rows("SELECT file FROM segment ORDER BY file"):
            (folder / name).parent.mkdir(exist_ok=True)
            _linked(store.segments / name, folder / name)
    return {
        "format": FORMAT, "weaklink": version("weaklink"), "made_ts": time.time(),
        "migrations": migrations, "tables": tables, "sequences": sequences,
    }  # fmt: skip


def _linked(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, int(time.time()), 0o600
    return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


# -- back again ---------------------------------------------------------------------------------------------------------------
def restore(archive: Path, path: Path) -> dict[str, Any]:
    """Make a store at `path`, where none may be, from a backup; its manifest. BackupError leaves nothing behind."""
    if path.exists() or path.with_suffix(".segments").exists():
        raise BackupError(f"{path}: there is a store already; move it away, or give another --store")
    half = path.with_name(f"{path.stem}-restoring{path.suffix}")
    place = half.with_suffix(".segments")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        for left in (half, Path(f"{half}.wal")):
            left.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        manifest = _unpacked(archive, place)
        _filled(half, place, manifest)
        shutil.rmtree(place / "tables")
        half.replace(path)
        place.replace(path.with_suffix(".segments"))
    except (OSError, tarfile.TarError, StoreError, DatabaseError) as error:
        raise BackupError(f"{archive}: {error}") from error
    finally:
        for left in (half, Path(f"{half}.wal")):
            left.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
    return manifest


def _unpacked(archive: Path, place: Path) -> dict[str, Any]:
    """Unpack a backup whose every byte is as its manifest says."""
    with tarfile.open(archive, "r:") as found:
        first = found.next()
        if first is None or first.name != "manifest.json" or first.size > _CHUNK * 16:
            raise BackupError(f"{archive}: not a backup of weaklink (its first member is its manifest)")
        stream = found.extractfile(first)
        manifest: dict[str, Any] = _manifest(archive, stream.read() if stream else b"")
        files = dict(manifest["files"])
        while info := found.next():
            if not info.isfile() or not NAME.fullmatch(info.name) or info.name not in files:
                raise BackupError(f"{archive}: {info.name!r} does not belong into a backup; nothing was restored")
            target = place / info.name
            target.parent.mkdir(parents=True, exist_ok=True)
            content = found.extractfile(info)
            assert content is not None
            if _copied(content, target) != files.pop(info.name):
                raise BackupError(f"{archive}: {info.name} is damaged; nothing was restored")
    if files:
        raise BackupError(f"{archive}: cut short: {len(files)} files are missing; nothing was restored")
    return manifest


def _copied(content: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("wb") as out:
        while piece := content.read(_CHUNK):
            digest.update(piece)
            out.write(piece)
    return digest.hexdigest()


def _manifest(archive: Path, body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
        shape = {"format": int, "migrations": list, "tables": dict, "sequences": dict, "files": dict}
        wrong = [key for key, kind in shape.items() if not isinstance(found.get(key), kind)]
    except (ValueError, AttributeError, RecursionError) as error:
        raise BackupError(f"{archive}: its manifest cannot be read ({error})") from error
    if wrong:
        raise BackupError(f"{archive}: its manifest cannot be read ({', '.join(wrong)} missing)")
    newer = sorted(set(found["migrations"]) - set(sql_names("schema")))
    if found["format"] != FORMAT or newer:
        raise BackupError(f"{archive}: made by a newer weaklink ({newer[-1] if newer else found['format']}). Upgrade weaklink.")
    return dict(found)


def _filled(path: Path, place: Path, manifest: dict[str, Any]) -> None:
    """A store with the schema of the backup and its rows; then brought to today's schema."""
    with Store(path, upto=manifest["migrations"]) as store:
        known = {row[0] for row in store.rows("SELECT table_name FROM duckdb_tables() WHERE NOT temporary AND NOT internal")}
        sequences = {row[0] for row in store.rows("SELECT sequence_name FROM duckdb_sequences()")}
        if set(manifest["tables"]) - known or set(manifest["sequences"]) - sequences:
            raise BackupError("its tables are not those of its schema; nothing was restored")
        for name, count in manifest["tables"].items():
            if name == "migration":
                continue
            file = place / "tables" / f"{name}.parquet"
            came = store.rows(f"INSERT INTO {name} BY NAME SELECT * FROM read_parquet('{_quoted(file)}')")[0][0]
            if came != count:
                raise BackupError(f"{name}: {came} rows, {count} expected; nothing was restored")
        for name, last in manifest["sequences"].items():
            store.rows(f"SELECT max(nextval('{name}')) FROM range(?)", [int(last)])
        if "alive" in known:
            store.execute("DELETE FROM alive")
    with Store(path) as store:
        store.note(
            "restore", f"from a backup of {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(manifest.get('made_ts', 0)))} UTC"
        )


def leftovers(store: Store) -> None:
    """Remove what a backup left that was killed."""
    if store.segments is not None:
        with contextlib.suppress(OSError):
            shutil.rmtree(store.segments / STAGING)
