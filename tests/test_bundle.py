"""Bundles: the same members from every container, nothing read or written outside, damage is said and never fatal."""

import gzip
import hashlib
import io
import os
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from app.collectors.sources import bundle
from app.collectors.sources.bundle import BundleError, Member, is_archive, members
from app.ingest import load
from app.store import Store

FILES: Final = {"a.txt": b"first\n", "deep/er/b.txt": b"second\n" * 1000, "empty": b"", "packed.gz": gzip.compress(b"third\n")}
LONG: Final = f"{'x' * 200}/"


def contents(path: Path) -> dict[str, bytes]:
    """Return what is in each member that can be read, unpacked."""
    with members(path) as found:
        return {member.name: whole(member) for member in found if member.path is not None}


def whole(member: Member) -> bytes:
    with member.open() as stream:
        return stream.read()


def folder(path: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def zipped(path: Path, files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def tarred(path: Path, files: Mapping[str, bytes], mode: str) -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            archive.addfile(info(name, len(data)), io.BytesIO(data))
    return path


def info(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size, made.type, made.linkname = size, kind, target
    return made


CONTAINERS: Final[dict[str, Callable[[Path, Mapping[str, bytes]], Path]]] = {
    "folder": lambda path, files: folder(path / "recording", files),
    "zip": lambda path, files: zipped(path / "recording.zip", files),
    "stored zip": lambda path, files: zipped(path / "recording.zip", files, zipfile.ZIP_STORED),
    "tar": lambda path, files: tarred(path / "recording.tar", files, "w"),
    "tar.gz": lambda path, files: tarred(path / "recording.tar.gz", files, "w:gz"),
    "tgz": lambda path, files: tarred(path / "recording.tgz", files, "w:gz"),
    "pax tar": lambda path, files: tarred(path / "recording.tar", {LONG + name: data for name, data in files.items()}, "w"),
}


@contextmanager
def nothing_else_written(path: Path) -> Iterator[None]:
    """Fail where a file comes or goes in `path` or beside it."""
    before = sorted(path.parent.rglob("*"))
    yield
    assert sorted(path.parent.rglob("*")) == before


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the one folder into which archives are unpacked, two floors down, so that ../.. can be watched as well."""
    place = tmp_path / "one" / "two"
    place.mkdir(parents=True)
    monkeypatch.setattr(bundle.tempfile, "tempdir", str(place))
    return place


# -- containers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_gives_the_same_members_in_name_order(container: str, tmp_path: Path):
    path = CONTAINERS[container](tmp_path, FILES)
    with members(path) as found:
        assert [member.name.removeprefix(LONG) for member in found] == sorted(FILES)
        assert [whole(member) for member in found] == [b"first\n", b"second\n" * 1000, b"", b"third\n"]
        assert [member.hash_hex for member in found] == [hashlib.sha256(FILES[name]).hexdigest() for name in sorted(FILES)]
        assert [member.size for member in found] == [len(FILES[name]) for name in sorted(FILES)]
        assert [member.problem for member in found] == [None] * 4
    assert is_archive(path) is (container != "folder")


@pytest.mark.parametrize("container", ["zip", "tar", "tar.gz"])
def test_a_container_is_told_by_its_content_not_its_name(container: str, tmp_path: Path):
    path = CONTAINERS[container](tmp_path, FILES)
    renamed = path.rename(tmp_path / "upload.log")
    assert is_archive(renamed)
    assert contents(renamed)["a.txt"] == b"first\n"


@pytest.mark.parametrize("name", ["plain.log", "plain.zip.log", "plain.tar"])
def test_a_single_file_is_its_only_member(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(b"one\ntwo\n")
    assert contents(tmp_path / name) == {name: b"one\ntwo\n"}
    assert not is_archive(tmp_path / name)


def test_a_gz_file_is_unpacked_while_it_is_read(tmp_path: Path):
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(b"one\ntwo\n") + gzip.compress(b"three\n"))
    with members(tmp_path / "a.log.gz") as (member,), member.open() as stream:
        assert list(stream) == [b"one\n", b"two\n", b"three\n"]
        assert stream.problem is None
    with members(tmp_path / "a.log.gz") as (member,):
        assert member.head() == b"one\ntwo\nthree\n"


def test_a_stream_serves_reads_of_every_kind(tmp_path: Path):
    data = random.Random(1).randbytes(300_000)
    (tmp_path / "x.gz").write_bytes(gzip.compress(data))
    with members(tmp_path / "x.gz") as (member,), member.open() as stream:
        buffer = bytearray(1000)
        assert stream.readinto(buffer) == 1000
        assert bytes(buffer) + stream.read(100_000) + stream.read(0) + stream.readline(10) + stream.read() == data
        assert stream.read() == b""
    with members(tmp_path / "x.gz") as (member,):
        assert member.head() == data[: bundle.HEAD_BYTES]


def test_what_is_unpacked_is_removed(inside: Path, tmp_path: Path):
    for container in ("zip", "tar.gz"):
        with members(CONTAINERS[container](tmp_path, FILES)) as found:
            assert all(member.path.is_relative_to(inside) for member in found)
        assert list(inside.iterdir()) == []


@pytest.mark.parametrize("container", CONTAINERS)
def test_an_empty_container_has_no_members(container: str, tmp_path: Path):
    path = tmp_path / "recording"
    path.mkdir()
    path = path if container == "folder" else CONTAINERS[container](tmp_path, {})
    results = load(Store(), [path])
    if container.endswith(("tar", "gz")):  # an empty tar is zeros, and not known by its content
        assert [(result.name, result.format, result.added) for result in results] in ([], [(path.name, None, False)])
    else:
        assert contents(path) == {}
        assert results == []


@pytest.mark.parametrize("container", CONTAINERS)
def test_hidden_files_are_skipped(container: str, tmp_path: Path):
    hidden = {".DS_Store": b"x", ".git/config": b"x", "a/.hidden/b": b"x", "a/.c": b"x", "seen..log": b"y"}
    if container != "folder":
        hidden |= {"__MACOSX/a/._b.log": b"x", "./seen/too.log": b"y"}
    found = contents(CONTAINERS[container](tmp_path, hidden))
    assert set(found.values()) == {b"y"}


def test_a_path_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(BundleError, match=r"nowhere: no such file or folder"), members(tmp_path / "nowhere"):
        pass
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BundleError, match=r"pipe: neither a file nor a folder"), members(tmp_path / "pipe"):
        pass
    with pytest.raises(BundleError, match="nowhere"):
        load(Store(), [tmp_path / "nowhere"])


# -- nothing outside ---------------------------------------------------------------------------------------------------

ESCAPES: Final = [
    *("../escaped", "../../escaped", "a/../../../escaped", "/escaped", "//escaped", "..\\escaped", "..\\..\\escaped"),
    *("C:\\escaped", "C:/escaped", "\\\\host\\escaped", "a/./../../escaped", "~/escaped", "%2e%2e/escaped"),
    *("con\nescaped", "é/../escaped"),
]


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("container", ["zip", "tar", "tar.gz"])
def test_no_name_leads_out_of_the_folder(container: str, name: str, tmp_path: Path, inside: Path):
    path = CONTAINERS[container](tmp_path, {name: b"stolen\n", "honest.log": b"good\n"})
    with nothing_else_written(tmp_path), members(path) as found:
        assert sorted(whole(member) for member in found) == [b"good\n", b"stolen\n"]
        unpacked = [file for file in tmp_path.rglob("*") if file.is_file() and file != path]
        assert unpacked
        assert all(file.is_relative_to(inside) for file in unpacked)
        assert all(member.path.resolve().is_relative_to(inside) for member in found)


def test_names_without_end_are_no_problem(tmp_path: Path):
    long = "x/" * 2000 + "y" * 5000
    assert contents(tarred(tmp_path / "a.tar", {long: b"1"}, "w")) == {long: b"1"}
    assert contents(zipped(tmp_path / "a.zip", {long: b"1"})) == {long: b"1"}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_links_devices_and_pipes_of_a_tar_are_never_followed(mode: str, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret\n")
    with tarfile.open(tmp_path / "a.tar", mode) as archive:
        for at, (kind, target) in enumerate(
            [
                (tarfile.SYMTYPE, str(secret)),
                (tarfile.SYMTYPE, "../secret"),
                (tarfile.LNKTYPE, str(secret)),
                (tarfile.LNKTYPE, "honest.log"),
                (tarfile.CHRTYPE, ""),
                (tarfile.BLKTYPE, ""),
                (tarfile.FIFOTYPE, ""),
                (tarfile.DIRTYPE, ""),
            ],
        ):
            archive.addfile(info(f"odd{at}", kind=kind, target=target))
        archive.addfile(info("odd0/behind-a-link", 2), io.BytesIO(b"in"))
        archive.addfile(info("honest.log", 5), io.BytesIO(b"good\n"))
    with nothing_else_written(tmp_path):
        assert contents(tmp_path / "a.tar") == {"honest.log": b"good\n", "odd0/behind-a-link": b"in"}


def test_a_link_in_a_zip_is_text_and_not_followed(tmp_path: Path):
    (tmp_path / "secret").write_bytes(b"secret\n")
    link = zipfile.ZipInfo("link.log")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, str(tmp_path / "secret"))
    assert contents(tmp_path / "a.zip") == {"link.log": str(tmp_path / "secret").encode()}


def test_a_link_that_leaves_the_folder_is_not_part_of_it(tmp_path: Path):
    outside = folder(tmp_path / "outside", {"secret.log": b"secret\n"})
    inner = folder(tmp_path / "inner", {"a.log": b"a\n", "deep/b.log": b"b\n"})
    (inner / "file.log").symlink_to(outside / "secret.log")
    (inner / "up.log").symlink_to("../outside/secret.log")
    (inner / "folder").symlink_to(outside, target_is_directory=True)
    (inner / "loop").symlink_to(inner, target_is_directory=True)
    (inner / "dangling.log").symlink_to(inner / "nothing")
    (inner / "same.log").symlink_to(inner / "a.log")
    os.mkfifo(inner / "pipe.log")
    assert contents(inner) == {"a.log": b"a\n", "deep/b.log": b"b\n", "same.log": b"a\n"}


def test_a_folder_that_is_itself_a_link_is_read(tmp_path: Path):
    inner = folder(tmp_path / "inner", {"a.log": b"a\n"})
    (tmp_path / "link").symlink_to(inner, target_is_directory=True)
    assert contents(tmp_path / "link") == {"a.log": b"a\n"}


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["zip", "tar", "tar.gz", "folder"])
def test_too_many_members_are_refused(container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bundle, "MAX_MEMBERS", 3)
    assert len(contents(CONTAINERS[container](tmp_path / "a", numbered(tmp_path / "a", 3)))) == 3
    path = CONTAINERS[container](tmp_path / "b", numbered(tmp_path / "b", 4))
    with pytest.raises(BundleError, match=r"recording.*: more than 3 (members|files)"), members(path):
        pass


def numbered(path: Path, count: int) -> dict[str, bytes]:
    path.mkdir()
    return {f"{at}.log": b"x" for at in range(count)}


@pytest.mark.parametrize("container", ["zip", "tar", "tar.gz"])
def test_more_bytes_than_allowed_are_refused(container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: Path):
    monkeypatch.setattr(bundle, "MAX_UNPACKED_BYTES", 50_000)
    path = CONTAINERS[container](tmp_path, {"a.log": b"x" * 30_000, "b.log": b"y" * 30_000})
    with pytest.raises(BundleError, match=r"recording\.\S+: unpacks to more than .* 50000 bytes .*refused"), members(path):
        pass
    assert list(inside.iterdir()) == []


FREE: Final = 4 << 20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch):
    """Make the bytes that may have any ratio fewer, so that bombs are quickly made."""
    monkeypatch.setattr(bundle, "RATIO_FREE_BYTES", FREE)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("container", ["zip", "tar.gz"])
def test_a_bomb_is_refused(container: str, tmp_path: Path, inside: Path):
    path = CONTAINERS[container](tmp_path, {"small.log": b"x", "bomb.log": bytes(FREE + (8 << 20))})
    assert path.stat().st_size < 100_000
    with pytest.raises(BundleError, match=r"recording\.\S+: unpacks to more than 400 times its size"), members(path):
        pass
    assert list(inside.iterdir()) == []
    (result,) = load(Store(), [path])
    assert (result.name, result.format, result.added) == (path.name, None, False)
    assert "400 times its size" in result.message


@pytest.mark.usefixtures("small")
def test_a_gz_bomb_ends_early_and_says_so(tmp_path: Path):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(FREE + (8 << 20))))
    with members(tmp_path / "bomb.gz") as (member,), member.open() as stream:
        assert sum(map(len, iter(lambda: stream.read(1 << 20), b""))) <= FREE
        assert "400 times its size" in stream.problem


@pytest.mark.usefixtures("small")
def test_a_gz_bomb_inside_of_an_archive_ends_early_as_well(tmp_path: Path):
    path = zipped(tmp_path / "a.zip", {"bomb.gz": gzip.compress(bytes(FREE + (8 << 20)))})
    with members(path) as (member,), member.open() as stream:
        assert len(stream.read()) <= max(FREE, bundle.MAX_RATIO * member.size)
        assert "400 times its size" in stream.problem


def test_small_members_may_have_any_ratio(tmp_path: Path):
    zeros = bytes(1 << 20)
    assert contents(zipped(tmp_path / "a.zip", {"a": zeros})) == {"a": zeros}
    assert contents(tarred(tmp_path / "a.tgz", {"a": zeros}, "w:gz")) == {"a": zeros}


def test_a_sparse_tar_does_not_grow_without_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bundle, "MAX_UNPACKED_BYTES", 1 << 20)
    sparse = info("holes.log", 512, tarfile.GNUTYPE_SPARSE)
    header = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (0, 512)  # one block of data at 0 ...
    header[483:495] = b"%011o\0" % (8 << 20)  # ... of a file of 8 MiB
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:512]))
    (tmp_path / "a.tar").write_bytes(bytes(header) + b"x" * 512 + bytes(1024))
    with pytest.raises(BundleError, match="unpacks to more than"), members(tmp_path / "a.tar"):
        pass


# -- damage ------------------------------------------------------------------------------------------------------------

LOG: Final = "".join(
    f"(APIServer pid=7) INFO 11-29 12:{at // 6 % 60:02}:{at % 6 * 10:02} [loggers.py:257] Engine 000: "
    f"Avg prompt throughput: {at}.5 tokens/s, Avg generation throughput: {at * 7919 % 10007}.0 tokens/s, "
    f"Running: {at * 31 % 97} reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 2.0%\n"
    for at in range(300)
).encode()


def rows(store: Store) -> list[float]:
    return [row[0] for row in store.rows("SELECT prompt_tokens_per_s FROM stat ORDER BY line")]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_of_a_cut_gz_file_is_read_what_came_before(share: float, tmp_path: Path):
    packed = gzip.compress(LOG)
    (tmp_path / "server.log.gz").write_bytes(packed[: int(len(packed) * share)])
    store = Store()
    (result,) = load(store, [tmp_path / "server.log.gz"])
    assert (result.name, result.format, result.added) == ("server.log.gz", "vllm_log", True)
    assert result.message.startswith("damaged or cut short after ")
    assert result.message.endswith("what came before was read")
    found = rows(store)
    assert found == [at + 0.5 for at in range(len(found))]
    assert 300 * share * 0.5 < len(found) <= 300


def test_a_cut_gz_file_of_json_lines_is_read_up_to_the_cut(tmp_path: Path):
    line = b'{"id": "r%d", "t_send": %d.0, "t_end": %d.5, "status": "ok"}\n'
    lines = b"".join(line % (at, 1795953600 + at, 1795953600 + at) for at in range(2000))
    packed = gzip.compress(lines)
    (tmp_path / "client.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    store = Store()
    (result,) = load(store, [tmp_path / "client.jsonl.gz"])
    assert "what came before was read" in result.message
    ids = [row[0] for row in store.rows("SELECT request_id FROM request ORDER BY line")]
    assert ids == [f"r{at}" for at in range(len(ids))]
    assert 500 < len(ids) < 1500


def test_a_gz_file_with_a_wrong_checksum_is_read_and_named(tmp_path: Path):
    packed = bytearray(gzip.compress(LOG))
    packed[-6] ^= 0xFF
    (tmp_path / "server.log.gz").write_bytes(packed)
    store = Store()
    (result,) = load(store, [tmp_path / "server.log.gz"])
    assert "CRC" in result.message
    assert len(rows(store)) == 300


@pytest.mark.parametrize(("kind", "mode"), [("tar.gz", "w:gz"), ("tgz", "w:gz"), ("tar", "w")])
def test_of_a_cut_tar_is_read_what_came_before(kind: str, mode: str, tmp_path: Path):
    path = tarred(tmp_path / f"up.{kind}", {"a.log": LOG, "b.log": LOG.replace(b"Engine 000", b"Engine 001")}, mode)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.75)])
    store = Store()
    first, second, archive = load(store, [path])
    assert (first.name, first.message, first.rejected) == ("a.log", "", 0)
    assert second.name == "b.log"
    assert second.message.startswith("cut short in the archive: ")
    assert "what came before was read" in second.message
    assert archive.name == path.name
    assert archive.message.startswith("archive cut short or damaged after 2 members")
    assert 50 < store.rows("SELECT count(*) FROM stat WHERE engine = '1'")[0][0] < 300


@pytest.mark.parametrize("kept", [512 + len(LOG) + -len(LOG) % 512, 512 + len(LOG) + -len(LOG) % 512 + 100])
def test_a_tar_that_is_cut_between_two_members_is_named(kept: int, tmp_path: Path):
    path = tarred(tmp_path / "up.tar", {"a.log": LOG, "b.log": LOG}, "w")
    path.write_bytes(path.read_bytes()[:kept])
    first, archive = load(Store(), [path])
    assert first.added
    assert "after 1 members (a header or the end of the archive is missing)" in archive.message


def test_a_tar_with_a_damaged_header_in_the_middle_is_named(tmp_path: Path):
    path = tarred(tmp_path / "up.tar", {"a.log": LOG, "b.log": LOG}, "w")
    data = bytearray(path.read_bytes())
    data[512 + len(LOG) + -len(LOG) % 512 + 150] ^= 0xFF
    path.write_bytes(data)
    first, archive = load(Store(), [path])
    assert first.added
    assert "after 1 members" in archive.message


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_cut_zip_is_named(share: float, tmp_path: Path):
    path = zipped(tmp_path / "up.zip", {"a.log": LOG})
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(BundleError, match=r"up\.zip: not a complete zip archive .*cut short\?"), members(path):
        pass
    (tmp_path / "good.log").write_bytes(LOG)
    store = Store()
    cut, good = load(store, [path, tmp_path / "good.log"])
    assert (cut.name, cut.format) == ("up.zip", None)
    assert cut.message.startswith("not a complete zip archive")
    assert good.added


def test_a_zip_of_a_version_to_come_is_refused(tmp_path: Path):
    """Found by the fuzzer: the version that a member needs, in the directory of the archive."""
    path = tmp_path / "up.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.log", "x\n")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 200
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"up\.zip: not a complete zip archive \(zip file version 20\.0\)"), members(path):
        pass


def test_a_member_without_a_name_gets_one(tmp_path: Path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("x", "one")
        packed.writestr("b.log", "two")
    data = path.read_bytes()
    first = data.index(b"PK\x01\x02")  # the directory: no length of the name, and the name left out
    cut = data[: first + 28] + b"\0\0" + data[first + 30 : first + 46] + data[first + 47 :]
    end = cut.index(b"PK\x05\x06")
    size = int.from_bytes(cut[end + 12 : end + 16], "little") - 1
    path.write_bytes(cut[: end + 12] + size.to_bytes(4, "little") + cut[end + 16 :])
    with members(path) as found:
        assert [(one.name, one.path is not None) for one in found] == [("b.log", True), ("member 1", False)]


def test_a_damaged_member_of_a_zip_does_not_stop_the_others(tmp_path: Path):
    path = zipped(tmp_path / "up.zip", {"a.log": LOG, "b.log": LOG.replace(b"Engine 000", b"Engine 001")})
    data = bytearray(path.read_bytes())
    data[2000] ^= 0xFF
    path.write_bytes(data)
    store = Store()
    first, second = load(store, [path])
    assert first.message.startswith("damaged or cut short in the archive")
    assert (second.message, second.lines) == ("", 300)


def test_an_encrypted_member_is_named_and_the_others_are_read(tmp_path: Path):
    path = zipped(tmp_path / "up.zip", {"a.log": LOG, "b.log": b"text"})
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        central, local = archive.start_dir, archive.getinfo("a.log").header_offset
    data[local + 6] |= 1
    data[central + 8] |= 1
    path.write_bytes(data)
    first, second = load(Store(), [path])
    assert first.name == "a.log"
    assert first.message.startswith("cannot be unpacked: ")
    assert "encrypted" in first.message
    assert second.name == "b.log"


def test_an_unknown_compression_is_named(tmp_path: Path):
    path = zipped(tmp_path / "up.zip", {"a.log": LOG})
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        central = archive.start_dir
    data[8:10] = data[central + 10 : central + 12] = struct.pack("<H", 99)
    path.write_bytes(data)
    (result,) = load(Store(), [path])
    assert result.message.startswith("cannot be unpacked: ")


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tgz"])
def test_what_only_pretends_to_be_an_archive_is_named(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(b"\x1f\x8b no archive" if "gz" in name else b"no archive")
    (result,) = load(Store(), [tmp_path / name])
    assert result.name == name
    assert "archive" in result.message


def test_archives_inside_of_a_bundle_are_not_opened_and_not_taken_for_logs(tmp_path: Path):
    plain, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        archive.addfile(info("server.log", len(LOG)), io.BytesIO(LOG))
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("server.log", LOG)
    inner = {"in.tar": plain.getvalue(), "in.zip": packed.getvalue()}
    inner |= {f"{name}.gz": gzip.compress(data) for name, data in inner.items()}
    store = Store()
    for path in (zipped(tmp_path / "up.zip", inner), folder(tmp_path / "up", inner)):
        results = load(store, [path])
        assert [(result.name, result.format) for result in results] == [(name, None) for name in sorted(inner)]
        assert all(result.message.startswith("not recognised: an archive inside of a bundle") for result in results)
    assert rows(store) == []


def test_random_bytes_are_not_recognised(tmp_path: Path):
    noise = random.Random(2).randbytes(100_000)
    for name, data in {"noise": noise, "noise.gz": gzip.compress(noise), "half.gz": gzip.compress(noise)[:5000]}.items():
        (tmp_path / name).write_bytes(data)
        (result,) = load(Store(), [tmp_path / name])
        assert (result.name, result.format, result.added) == (name, None, False)


def test_a_member_whose_name_is_no_utf8_is_said(tmp_path: Path):
    """The flag says UTF-8, the bytes are none: zipfile raises when it opens the member (found by fuzzing)."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("aé.log", "x\n")  # its name makes zipfile set the flag
        archive.writestr("b.log", "y\n")
    data = path.read_bytes()
    path.write_bytes(data.replace("aé.log".encode(), b"a\xff\xfe.log", 1))  # the local header only
    with members(path) as found:
        said = {member.name: member.problem for member in found}
    assert said["b.log"] is None
    assert said["aé.log"]
