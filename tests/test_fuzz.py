"""Input that nobody would write: `python -m tests.fuzz` feeds a million to each reader, this a thousand. And archives made to hurt."""

import gzip
import io
import os
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Final

import fuzz
import pytest

from app.collectors.formats import FORMATS
from app.collectors.sources.bundle import BundleError, members
from app.ingest import load
from app.store import Store

LOG: Final = (fuzz.SAMPLES / "vllm_log" / "good" / "case-02.log").read_bytes()


@pytest.mark.parametrize("name", [*(module.NAME for module in FORMATS), fuzz.ARCHIVE])
def test_no_input_hurts(name: str):
    fuzz.run(850, int(os.environ.get("WEAKLINK_SEED", "11")), [name])


@pytest.mark.parametrize(("why", "change"), [("raises", ValueError), ("loops", None)])
def test_the_fuzzer_finds_what_is_planted(why: str, change: type[Exception] | None):
    class Planted:
        NAME = "planted"

        @staticmethod
        def sniff(_: bytes) -> bool:
            return True

        @staticmethod
        def read(stream: io.BytesIO, _: float):
            if change is not None:
                raise change("oh")
            began = time.process_time()
            while time.process_time() - began < 1.1:
                stream.read()
            yield from FORMATS[0].read(io.BytesIO(b""), 0.0)

    with Store() as store, pytest.raises(fuzz.Finding) as caught:
        fuzz.check_reader(Planted, b"x", store)
    assert ("ValueError: oh" if change else "took 1.") in str(caught.value)


# -- archives made to hurt ----------------------------------------------------------------------------------------------------
def zipped(path: Path, files: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def names(path: Path) -> list[str]:
    with members(path) as found:
        return [one.name for one in found]


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path):
    bomb = zipped(tmp_path / "bomb.zip", {"zeros": bytes(80 << 20)})
    assert bomb.stat().st_size < 100_000
    with pytest.raises(BundleError, match="unpacks to more than 400 times its size"), members(bomb):
        pass
    tarred = tmp_path / "bomb.tar.gz"
    with gzip.open(tarred, "wb") as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        info = tarfile.TarInfo("zeros")
        info.size = 80 << 20
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    with pytest.raises(BundleError, match="unpacks to more than 400 times its size"), members(tarred):
        pass
    single = tmp_path / "metrics.txt.gz"
    single.write_bytes(gzip.compress(bytes(80 << 20)))
    with Store() as store:
        (found,) = load(store, [single])
    assert not found.added or "unpacks to more than" in found.message


def test_an_archive_in_an_archive_is_not_opened(tmp_path: Path):
    inner = zipped(tmp_path / "inner.zip", {"server.log": LOG})
    for outer in (
        zipped(tmp_path / "outer.zip", {"inner.zip": inner.read_bytes(), "server.log": LOG}),
        zipped(tmp_path / "deep.zip", {"inner.log": inner.read_bytes(), "server.log": LOG}, zipfile.ZIP_STORED),
    ):
        with Store() as store:
            found = {one.name: one for one in load(store, [outer])}
        assert found["server.log"].added
        assert "an archive inside of a bundle is not opened" in next(one.message for name, one in found.items() if "inner" in name)


def test_a_hundred_thousand_members_are_refused_early(tmp_path: Path):
    tarred, path = tmp_path / "many.tar", tmp_path / "many.zip"
    tarred.write_bytes(tarfile.TarInfo("empty").tobuf() * 100_000 + bytes(1024))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for at in range(10_100):
            archive.writestr(zipfile.ZipInfo(f"{at}"), b"")
    for one in (tarred, path):
        before = time.process_time()
        with pytest.raises(BundleError, match="more than 10000 members"), members(one):
            pass
        assert time.process_time() - before < 10


def test_no_member_leaves_the_folder_or_leads_to_another_file(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("hush")
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind, link in (
            ("../../escaped", tarfile.REGTYPE, ""),
            ("/absolute", tarfile.REGTYPE, ""),
            ("soft", tarfile.SYMTYPE, str(secret)),
            ("hard", tarfile.LNKTYPE, str(secret)),
            ("device", tarfile.CHRTYPE, ""),
            ("pipe", tarfile.FIFOTYPE, ""),
            ("soft/through", tarfile.REGTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.size = len(LOG) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(LOG))
    with members(path) as found:
        assert sorted(one.name for one in found) == ["../../escaped", "/absolute", "soft/through"]
        for one in found:
            assert one.path.name.isdigit()
            assert one.path.read_bytes() == LOG
    assert secret.read_text() == "hush"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["evil.tar", "secret"]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(secret)
    (folder / "server.log").write_bytes(LOG)
    assert names(folder) == ["server.log"]
