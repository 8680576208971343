"""Bundles judged one by one and combined: the verdict is that of one machine that holds them all."""

import gzip
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from pyarrow import fs
from recordings import INCIDENTS, ROOT

from analyzers.model import Attribution, Incident
from app import shards
from app.ingest import load
from app.pipeline import attribution_for
from app.reports import json as json_report
from app.shards import Asked, Partial, Shard, ShardError, judged, shards_of
from app.store import Store

BUNDLES: Final = ("decode_batch", "kv_transfer", "slots")
CLI: Final = "from app.cli import main; main()"


def one_by_one(asked: Asked) -> shards.Run:
    def run(groups: Sequence[tuple[Shard, ...]]) -> Iterator[tuple[int, Partial]]:
        for at in reversed(range(len(groups))):  # tasks end in any order
            yield at, shards.judge(groups[at], asked)

    return run


def bare(found: Attribution) -> dict[str, Any]:
    return json.loads(json_report.render(Incident("0", (), found)))


def same(one: Any, other: Any, where: str = "") -> None:
    """Equal, numbers to 1e-9 of their size."""
    if isinstance(one, dict):
        assert isinstance(other, dict), where
        assert one.keys() == other.keys(), where
        for key in one:
            same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for at, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}[{at}]")
    elif isinstance(one, float) and isinstance(other, float):
        assert math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12), f"{where}: {one} {other}"
    else:
        assert one == other, where


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three servers' bundles; the log of one of them lies in a bundle of its own."""
    place = tmp_path_factory.mktemp("archive")
    for name in BUNDLES:
        (place / name).mkdir()
        for file in ("metrics.jsonl.gz", "command.json"):
            if (INCIDENTS / name / file).exists():
                shutil.copy(INCIDENTS / name / file, place / name / file)
    text = (place / "slots" / "metrics.jsonl.gz").read_bytes()
    lines = gzip.decompress(text).splitlines(keepends=True)
    (place / "slots" / "metrics.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[: len(lines) // 2])))
    (place / "slots-later").mkdir()
    (place / "slots-later" / "metrics.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[len(lines) // 2 :])))
    return place


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, Any]:
    """What one machine says of all of it."""
    with Store() as store:
        load(store, sorted(folder.iterdir()))
        return bare(attribution_for(store))


def test_shards_say_what_one_machine_says(folder: Path, whole: dict[str, Any]):
    found, files = judged(shards_of(str(folder)), Asked(), one_by_one(Asked()))
    same(whole, bare(found))
    assert [one["role"] for one in whole["engines"]] == ["both", "both", "prefill", "decode"]
    assert {file.bundle for file in files} == {*BUNDLES, "slots-later"}


def test_a_server_in_two_bundles_is_read_at_once(folder: Path):
    asked = Asked()
    groups: list[tuple[str, ...]] = []

    def run(given: Sequence[tuple[Shard, ...]]) -> Iterator[tuple[int, Partial]]:
        groups.extend(tuple(one.name for one in group) for group in given)
        yield from one_by_one(asked)(given)

    judged([one for one in shards_of(str(folder)) if one.name.startswith("slots")], asked, run)
    assert groups == [("slots",), ("slots-later",), ("slots", "slots-later")]


def test_behind_a_uri_bundles_are_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    bucket = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())  # a file system of its own: copied, as from a bucket
    monkeypatch.setattr(shards, "_system", lambda _: (bucket, ""))
    (shard,) = [one for one in shards_of("s3://bucket") if one.name == "decode_batch"]
    (path,) = shards._fetched(shard, tmp_path / "0")
    assert sorted(file.name for file in path.iterdir()) == ["command.json", "metrics.jsonl.gz"]


def test_nothing_and_no_folder_are_said(tmp_path: Path):
    with pytest.raises(ShardError, match="is empty"):
        shards_of(str(tmp_path))
    with pytest.raises(ShardError, match="cannot be listed"):
        shards_of(str(tmp_path / "none"))


def test_plain_files_are_one_bundle(tmp_path: Path):
    for name in ("a.log", "b.log", "c.zip", ".hidden"):
        (tmp_path / name).write_bytes(b"")
    assert [one.name for one in shards_of(str(tmp_path))] == ["c.zip", "a.log, b.log"]


@pytest.mark.ray
def test_ray_says_what_one_machine_says(folder: Path, whole: dict[str, Any]):
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    command = [sys.executable, "-c", CLI, "analyze", "--ray", "local", str(folder), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=250, check=False, env={**os.environ, "NO_COLOR": "1"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {file["name"] for file in found["source"].pop("files")} == {"metrics.jsonl.gz", "command.json"}
    expected = {**whole, "source": {name: value for name, value in whole["source"].items() if name != "files"}}
    same(expected, {**found, "weaklink": expected["weaklink"]})


def test_without_a_cluster_it_says_so(folder: Path):
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    command = [sys.executable, "-c", CLI, "analyze", "--ray", "127.0.0.1:1", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=250, check=False)
    assert done.returncode == 2
    assert "no Ray at 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
