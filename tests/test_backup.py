"""Backups while the store is in use, restoring, and stores of every released schema: the same attribution as from the recording."""

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from recordings import INCIDENTS, finished
from recordings import text as exposed

from app.backup import BackupError, pieces, restore, write
from app.ingest import load
from app.live.scraped import Feeds, put
from app.pipeline import attribution_for
from app.retention import DAY_S, Policy, keep
from app.store import Store, sql_names

STORES: Final = sorted((Path(__file__).resolve().parent / "stores").glob("*.duckdb.gz"))
MIDNIGHT: Final = 1795910400.0


def judged(store: Store) -> str:
    """Return the whole attribution, as text."""
    return json.dumps(
        asdict(attribution_for(store)), sort_keys=True, default=lambda one: one.tolist() if hasattr(one, "tolist") else str(one)
    )


@pytest.fixture(scope="module")
def expected() -> str:
    with Store() as store:
        load(store, [INCIDENTS / "slots"], now=1796000000.0)
        return judged(store)


def old(file: Path, folder: Path) -> Path:
    path = folder / file.name.removesuffix(".gz")
    path.write_bytes(gzip.decompress(file.read_bytes()))
    return path


@pytest.mark.parametrize("file", STORES, ids=lambda file: file.name.partition(".")[0])
def test_a_store_of_every_released_schema_is_migrated_and_judged_the_same(file: Path, tmp_path: Path, expected: str):
    path = old(file, tmp_path)
    for again in (False, True):
        with Store(path) as store:
            assert [row[0] for row in store.rows("SELECT name FROM migration ORDER BY name")] == sql_names("schema")
            assert again or judged(store) == expected
            if file.name >= "0002":
                assert store.rows("SELECT name FROM slo") == [("fast",)]
            if file.name >= "0003":
                assert store.rows("SELECT hypothesis FROM experiment") == [("more_slots",)]


def test_every_schema_but_the_newest_has_a_store():
    """The newest one is the schema of this tree; when the next is added its store is made by the code before."""
    held = {file.name.partition(".")[0] for file in STORES}
    released = {"0001", "0002", "0003"}
    assert held == released


def lines(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"t": MIDNIGHT + at, "url": "http://h:1/metrics", "dur": 0.0, "text": exposed(finished(at, e2e=1.0))}
        for at in range(first, first + count)
    ]


def contents(store: Store) -> dict[str, Any]:
    names = [row[0] for row in store.rows("SELECT table_name FROM duckdb_tables() WHERE NOT temporary ORDER BY 1")]
    names = [name for name in names if name not in {"alive", "journal"}]
    return {name: sorted(map(repr, store.rows(f"SELECT * FROM {name}"))) for name in names}


def test_a_backup_comes_back_as_it_was(tmp_path: Path):
    with Store(tmp_path / "a.duckdb") as store:
        put(store, {}, lines(300))
        keep(store, Policy(), MIDNIGHT + 2 * DAY_S)
        put(store, {}, lines(10, 2 * int(DAY_S)))
        load(store, [INCIDENTS / "output"])
        store.note("upload", "output", "ann")
        held = contents(store)
        size = write(pieces(store), tmp_path / "b.tar")
        assert size == (tmp_path / "b.tar").stat().st_size
        assert not (tmp_path / "b.tar.part").exists()
    manifest = restore(tmp_path / "b.tar", tmp_path / "deep" / "c.duckdb")
    assert manifest["tables"]["scrape"] > 300
    with Store(tmp_path / "deep" / "c.duckdb") as store:
        assert store.notice is None
        assert contents(store) == held
        assert store.rows("SELECT count(*) FROM segment") == [(1,)]
        assert [row[0] for row in store.rows("SELECT kind FROM journal ORDER BY ts")] == ["upload", "restore"]
        before = store.rows("SELECT max(series_id) FROM series")[0][0]
        put(store, {}, [{**lines(1)[0], "url": "http://new:1/metrics"}])  # numbers go on behind the old ones
        assert store.rows("SELECT min(series_id) > ? FROM series WHERE instance = 'new:1'", [before]) == [(True,)]
    assert {one.name for one in (tmp_path / "deep").iterdir()} == {"c.duckdb", "c.segments"}


def test_a_backup_of_an_older_schema_is_migrated(tmp_path: Path):
    with Store(tmp_path / "a.duckdb") as store:
        put(store, {}, lines(50))
        held = store.rows("SELECT * FROM interval_row ORDER BY ts")
        write(pieces(store), tmp_path / "b.tar")

    def older(manifest: dict[str, Any]) -> None:
        manifest["migrations"] = ["0001_start"]
        with Store(tmp_path / "old.duckdb", upto=["0001_start"]) as store:
            known = {row[0] for row in store.rows("SELECT table_name FROM duckdb_tables()")}
            sequences = {row[0] for row in store.rows("SELECT sequence_name FROM duckdb_sequences()")}
        manifest["tables"] = {name: count for name, count in manifest["tables"].items() if name in known}
        manifest["sequences"] = {name: last for name, last in manifest["sequences"].items() if name in sequences}

    # source_file of 0001 has no column `live`: the rows of the older schema, as it would have written them
    with Store(tmp_path / "a.duckdb") as store:
        store.segments.mkdir(exist_ok=True)
        file = store.segments / "x.parquet"
        store.rows(f"COPY (SELECT * EXCLUDE (live) FROM source_file) TO '{file}' (FORMAT parquet)")
    changed(tmp_path / "b.tar", tmp_path / "c.tar", older, {"tables/source_file.parquet": file.read_bytes()})
    restore(tmp_path / "c.tar", tmp_path / "d.duckdb")
    with Store(tmp_path / "d.duckdb") as store:
        assert store.rows("SELECT * FROM interval_row ORDER BY ts") == held
        assert store.rows("SELECT live FROM source_file") == [(True,)]


def changed(
    archive: Path,
    out: Path,
    change: Callable[[dict[str, Any]], None] = lambda _: None,
    files: dict[str, bytes] | None = None,
    **options: Any,
) -> Path:
    """Write a backup anew, with another manifest or other files (whose hashes then fit)."""
    with tarfile.open(archive) as found:
        held = {info.name: found.extractfile(info).read() for info in found}
    manifest = json.loads(held.pop("manifest.json"))
    for name, data in (files or {}).items():
        held[name] = data
        if options.get("fit", True):
            manifest["files"][name] = hashlib.sha256(data).hexdigest()
    change(manifest)
    with tarfile.open(out, "w") as made:
        for name, data in {"manifest.json": json.dumps(manifest).encode(), **held}.items():
            if name == options.get("without"):
                continue
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return out


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backup")
    with Store(folder / "a.duckdb") as store:
        put(store, {}, lines(20))
        write(pieces(store), folder / "good.tar")
    return folder / "good.tar"


def test_what_is_no_whole_backup_is_refused_and_leaves_nothing(tmp_path: Path, backup: Path):
    cut = tmp_path / "cut.tar"
    cut.write_bytes(backup.read_bytes()[:-9000])
    junk = tmp_path / "junk.tar"
    junk.write_bytes(b"junk" * 1000)
    cases = {
        cut: "",
        junk: "",
        changed(
            backup, tmp_path / "1.tar", files={"tables/scrape.parquet": b"PAR1"}, fit=False
        ): "tables/scrape.parquet is damaged",
        changed(backup, tmp_path / "2.tar", files={"tables/scrape.parquet": b"not parquet"}): "",
        changed(backup, tmp_path / "3.tar", files={"../../evil": b"x"}): "does not belong into a backup",
        changed(backup, tmp_path / "4.tar", without="tables/scrape.parquet"): "1 files are missing",
        changed(
            backup, tmp_path / "5.tar", lambda m: m.update(migrations=[*m["migrations"], "9999_future"])
        ): "made by a newer weaklink",
        changed(
            backup, tmp_path / "6.tar", lambda m: m["tables"].update({"x; DROP TABLE sample": 1})
        ): "its tables are not those of its schema",
        changed(backup, tmp_path / "7.tar", lambda m: m["tables"].update(scrape=99)): "20 rows, 99 expected",
        changed(backup, tmp_path / "8.tar", lambda m: m.pop("files")): "its manifest cannot be read",
    }
    for archive, why in cases.items():
        with pytest.raises(BackupError) as caught:
            restore(archive, tmp_path / "store" / "a.duckdb")
        assert why in str(caught.value), archive
        assert list((tmp_path / "store").iterdir()) == [], archive
    assert not (tmp_path.parent / "evil").exists()
    restore(backup, tmp_path / "store" / "a.duckdb")
    with pytest.raises(BackupError, match="there is a store already"):
        restore(backup, tmp_path / "store" / "a.duckdb")


def test_a_backup_is_of_one_instant_while_others_write_and_days_are_closed(tmp_path: Path):
    stop, errors, counts = threading.Event(), [], []
    with Store(tmp_path / "a.duckdb") as store:
        feeds: Feeds = {}
        put(store, feeds, lines(200))

        def writing() -> None:
            at = 200
            while not stop.is_set():
                put(store, feeds, lines(5, at))
                at += 5

        def closing() -> None:
            days = iter(range(2, 1000))
            while not stop.is_set():
                keep(store, Policy(raw_days=0.5), MIDNIGHT + next(days) * DAY_S)

        def guarded(what: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    what()
                except Exception as error:  # noqa: BLE001 shown below
                    if "ChangedError" not in type(error).__name__:
                        errors.append(error)

            return run

        threads = [threading.Thread(target=guarded(what)) for what in (writing, closing)]
        for thread in threads:
            thread.start()
        for at in range(4):
            write(pieces(store), tmp_path / f"{at}.tar")
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
    for at in range(4):
        restore(tmp_path / f"{at}.tar", tmp_path / str(at) / "a.duckdb")
        with Store(tmp_path / str(at) / "a.duckdb") as store:
            finished_n = attribution_for(store).engines[0]
            row = store.columns("SELECT sum(e2e_n) AS n, max(ts) AS ts FROM interval_row")
            counts.append(row["n"][0])
            np.testing.assert_allclose(row["n"], row["ts"] - MIDNIGHT)  # one request a second: nothing is lost or twice
            assert finished_n.instance == "h:1"
    assert counts == sorted(counts)


def test_one_backup_at_a_time_and_none_of_memory(tmp_path: Path):
    with Store() as store, pytest.raises(BackupError, match="in memory"):
        next(pieces(store))
    with Store(tmp_path / "a.duckdb") as store:
        first = pieces(store)
        next(first)
        with pytest.raises(BackupError, match="another backup is being made"):
            next(pieces(store))
        first.close()  # who asked has gone
        assert list((store.segments / "staging").iterdir()) == []
        next(pieces(store))
