"""Bundles: a folder, .zip, .tar, .tar.gz/.tgz, or single files (also .gz), as `record` writes and users upload them.

Archive members are copied to numbered files of a temporary folder, so no member name ever becomes a path. Limits:
member count, unpacked bytes and compression ratio; what exceeds them is refused with the limit in the message.
"""

import gzip
import hashlib
import io
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

HEAD_BYTES: Final = 64 * 1024
MAX_MEMBERS: Final = 10_000
MAX_UNPACKED_BYTES: Final = 8 * 1024**3
MAX_RATIO: Final = 400  # repetitive scrapes reach 60; a bomb has 1000
RATIO_FREE_BYTES: Final = 64 * 1024**2  # small members may have any ratio
_CHUNK: Final = 1 << 20


class BundleError(Exception):
    """The bundle cannot be used; the message names the file and what was expected."""


@dataclass
class Member:
    """One file of a bundle. `problem` says why it cannot be read (fully), None where it can."""

    name: str
    path: Path | None
    problem: str | None = None
    hash_hex: str = ""
    size: int = 0
    packed: bool = field(default=False)

    @contextmanager
    def open(self) -> Iterator["Stream"]:
        """The unpacked bytes. A damaged gzip ends early and leaves its reason in `Stream.problem`."""
        assert self.path is not None
        with self.path.open("rb") as raw:
            yield Stream(cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if self.packed else raw, self.size, limited=self.packed)

    def head(self) -> bytes:
        """The first 64 KiB, unpacked."""
        with self.open() as stream:
            return stream.read(HEAD_BYTES)


class Stream(io.RawIOBase, BinaryIO):
    """Bytes of a member that end, instead of raising, where the data are damaged or larger than the limits."""

    def __init__(self, inner: IO[bytes], stored: int, *, limited: bool) -> None:
        super().__init__()
        self._inner, self._stored, self._limited = inner, max(stored, 1), limited
        self._seen = 0
        self.problem: str | None = None

    def readable(self) -> bool:
        """True always."""
        return True

    def _take(self, size: int, how: str) -> bytes:
        if self.problem:
            return b""
        try:
            data = cast(bytes, getattr(self._inner, how)(size))
        except (OSError, EOFError, zlib.error) as error:
            self.problem = f"damaged or cut short after {self._seen} bytes ({error}); what came before was read"
            return b""
        self._seen += len(data)
        if self._limited and (
            self._seen > MAX_UNPACKED_BYTES or (self._seen > RATIO_FREE_BYTES and self._seen > MAX_RATIO * self._stored)
        ):
            self.problem = f"unpacks to more than {MAX_RATIO} times its size or {MAX_UNPACKED_BYTES} bytes; reading stopped there"
            return b""
        return data

    def read(self, size: int | None = -1) -> bytes:
        """Up to `size` bytes, piece by piece: GzipFile.read(n) loses up to n bytes before the damage with its exception."""
        want = -1 if size is None else size
        if not self._limited:
            return self._take(want, "read")
        parts, left = [], want
        while left and (piece := self._take(left, "read1")):
            parts.append(piece)
            left -= len(piece) if want >= 0 else 0
        return b"".join(parts)

    def readline(self, size: int | None = -1) -> bytes:
        """A line, or its first `size` bytes."""
        return self._take(-1 if size is None else size, "readline")

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Fill `buffer` as far as there is something; how many bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> bytes:
        line = self.readline()
        if not line:
            raise StopIteration
        return line


@contextmanager
def members(path: Path) -> Iterator[list[Member]]:
    """The files of a bundle, in name order, readable inside the `with`. Raises BundleError where there is no bundle."""
    if path.is_dir():
        yield [_on_disk(entry, str(entry.relative_to(path))) for entry in _walk(path)]
    elif not path.exists():
        raise BundleError(f"{path}: no such file or folder")
    elif not path.is_file():
        raise BundleError(f"{path}: neither a file nor a folder")
    else:
        with tempfile.TemporaryDirectory(prefix="weaklink-") as folder:
            kind = _kind(path)
            if kind == "zip":
                yield sorted(_from_zip(path, Path(folder)), key=lambda member: member.name)
            elif kind == "tar":
                yield sorted(_from_tar(path, Path(folder)), key=lambda member: member.name)
            else:
                yield [_on_disk(path, path.name)]


def is_archive(path: Path) -> bool:
    """True for a .zip or .tar(.gz) file, by content (a damaged one by its suffix)."""
    return _kind(path) is not None


def holds_files(head: bytes) -> bool:
    """True for the (unpacked) head of an archive: inside a bundle it is not opened, and its bytes are no recording."""
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06")) or head[257:262] == b"ustar"


def _kind(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except OSError:
        return None
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")) or path.suffix.lower() == ".zip":
        return "zip"
    return "tar" if _is_tar(path, start) else None


def _walk(folder: Path) -> Iterator[Path]:
    count = 0
    for entry in sorted(folder.rglob("*")):
        inside = entry.resolve().is_relative_to(folder.resolve())  # a link that leaves the folder is not part of it
        if entry.is_file() and inside and not any(part.startswith(".") for part in entry.relative_to(folder).parts):
            count += 1
            if count > MAX_MEMBERS:
                raise BundleError(f"{folder}: more than {MAX_MEMBERS} files. Name the folder that holds the recordings.")
            yield entry


def _on_disk(path: Path, name: str) -> Member:
    try:
        with path.open("rb") as file:
            hash_hex = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            packed = file.read(2) == b"\x1f\x8b"
    except OSError as error:
        return Member(name, None, f"cannot be read: {error.strerror}")
    return Member(name, path, None, hash_hex, path.stat().st_size, packed)


def _is_tar(path: Path, start: bytes) -> bool:
    if len(start) >= 262 and start[257:262] == b"ustar":
        return True
    if start.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(path) as file:
                return file.read(512)[257:262] == b"ustar"
        except (OSError, EOFError, zlib.error):
            return path.name.lower().endswith((".tar.gz", ".tgz"))
    return False


class _Budget:
    """Counts members and bytes of one archive."""

    def __init__(self, path: Path) -> None:
        self.path, self.members, self.bytes = path, 0, 0
        self.stored = max(path.stat().st_size, 1)

    def copy(self, source: IO[bytes], target: Path, name: str, size: int = -1) -> Member:
        """Copy a member to a file. `size`: where it ends in `source`, -1 where `source` ends with it."""
        self.members += 1
        if self.members > MAX_MEMBERS:
            raise BundleError(f"{self.path.name}: more than {MAX_MEMBERS} members; split it, or load a folder")
        digest, problem, start, left = hashlib.sha256(), None, b"", size
        with target.open("wb") as out:
            while left:
                try:
                    # one piece: read() would lose what it has when the next piece is damaged
                    chunk = cast(Any, source).read1(min(left, _CHUNK) if left > 0 else _CHUNK)
                except (OSError, EOFError, zlib.error, zipfile.BadZipFile, UnicodeError, tarfile.TarError, RuntimeError) as error:
                    problem = f"damaged or cut short in the archive ({error}); what came before was read"
                    break
                if not chunk:
                    if left > 0:
                        problem = f"cut short in the archive: {left} of {size} bytes are missing; what came before was read"
                    break
                start = start if len(start) > 1 else start + chunk[:2]
                left -= len(chunk) if size >= 0 else 0
                self.bytes += len(chunk)
                if self.bytes > MAX_UNPACKED_BYTES or (self.bytes > RATIO_FREE_BYTES and self.bytes > MAX_RATIO * self.stored):
                    raise BundleError(
                        f"{self.path.name}: unpacks to more than {MAX_RATIO} times its size or {MAX_UNPACKED_BYTES} bytes "
                        f"(member {name}); refused",
                    )
                digest.update(chunk)
                out.write(chunk)
        return Member(name, target, problem, digest.hexdigest(), target.stat().st_size, start[:2] == b"\x1f\x8b")


def _skipped(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return any(part.startswith((".", "__MACOSX")) and part not in {".", ".."} for part in parts)


def _from_zip(path: Path, folder: Path) -> Iterator[Member]:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, UnicodeError, OSError) as error:
        raise BundleError(f"{path.name}: not a complete zip archive ({error}); was the upload or copy cut short?") from error
    budget = _Budget(path)
    with archive:
        for number, info in enumerate(archive.infolist()):
            if info.filename.endswith("/") or _skipped(info.filename):  # is_dir() fails where a member has no name
                continue
            name = info.filename or f"member {number + 1}"
            try:
                with archive.open(info) as source:
                    yield budget.copy(source, folder / f"{number:06d}", name)
            except (zipfile.BadZipFile, UnicodeError, RuntimeError, NotImplementedError, EOFError, OSError) as error:
                yield Member(name, None, f"cannot be unpacked: {error}")


def _from_tar(path: Path, folder: Path) -> Iterator[Member]:
    plain, problem = path, None
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            file.seek(0)
            plain = folder / "tar"
            if _Budget(path).copy(cast(IO[bytes], gzip.GzipFile(fileobj=file)), plain, path.name).problem:
                problem = "the gzip data are damaged or end early"
    budget = _Budget(path)
    number = 0
    try:
        with plain.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for info in archive:
                number += 1
                if not info.isfile() or _skipped(info.name):
                    continue  # links and devices are never followed
                if info.issparse():
                    source = archive.extractfile(info)
                    assert source is not None
                    yield budget.copy(source, folder / f"{number:06d}", info.name)
                else:
                    file.seek(info.offset_data)  # not extractfile(): of a cut member it gives nothing
                    yield budget.copy(file, folder / f"{number:06d}", info.name, info.size)
            file.seek(archive.offset)
            if file.read(512) != bytes(512):
                problem = problem or "a header or the end of the archive is missing"
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        if number == 0:
            raise BundleError(f"{path.name}: not a readable tar archive ({problem or error})") from error
        problem = problem or str(error)
    if problem:
        said = f"archive cut short or damaged after {number} members ({problem}); what came before was read"
        yield Member(path.name, None, said)
