"""Files on their way into the store: once, whole or not at all, to the server they belong to, and without anybody's words."""

import gzip
import json
import shutil
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import pytest
from recordings import (
    INCIDENTS,
    NOON,
    by_name,
    client,
    kv_event,
    scrape,
    scrapes,
    series,
    span,
    started,
    stats,
    text,
)

from analyzers.model import Batch
from app.collectors.formats import otlp_spans
from app.ingest import load
from app.store import Store

TOKENS: Final = series("generation_tokens_total")
START: Final = series("process_start_time_seconds", None)
TABLES: Final = ("source_file", "rejected_line", "series", "sample", "scrape", "request", "stat", "step", "event", "kv_event")


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as opened:
        yield opened


def bundle(path: Path, **files: str | bytes) -> Path:
    """Write a folder; in the names __ stands for a dot."""
    path.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (path / name.replace("__", ".")).write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def counts(store: Store) -> dict[str, int]:
    return {table: store.rows(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}


def server_of(store: Store) -> dict[str, str | None]:
    """Return the server of each file."""
    return dict(store.rows("SELECT name, instance FROM source_file ORDER BY name"))


def two_servers(path: Path, **more: str) -> Path:
    """Write a bundle of two scraped servers, a:8000 and b:8001."""
    metrics = {f"{host}__jsonl": scrape(0, {TOKENS: 1}, f"http://{host}/metrics") for host in ("a:8000", "b:8001")}
    return bundle(path, **metrics, **more)


# -- once --------------------------------------------------------------------------------------------------------------


def test_nothing(store: Store):
    assert load(store, []) == []
    assert counts(store) == dict.fromkeys(TABLES, 0)


def test_the_same_bundle_twice_adds_nothing_in_whatever_form(store: Store, tmp_path: Path):
    folder = tmp_path / "kv_eviction"
    shutil.copytree(INCIDENTS / "kv_eviction", folder)
    first = load(store, [folder])
    before, rows = (
        counts(store),
        store.rows("SELECT instance, engine, sum(generation_tokens), count(*) FROM interval_row GROUP BY ALL"),
    )
    assert sum(result.added for result in first) == 6
    with zipfile.ZipFile(tmp_path / "again.zip", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"inside/{file.name}")
    for path in (folder, tmp_path / "again.zip", folder / "metrics.jsonl.gz"):
        results = [result for result in load(store, [path]) if result.format]
        assert not any(result.added for result in results)
        assert all(result.message.startswith("already loaded (as kv_eviction/") for result in results)
        was = by_name(first)
        assert all((result.lines, result.rejected) == (was[Path(result.name).name].lines, 0) for result in results)
        assert counts(store) == before
    assert store.rows("SELECT instance, engine, sum(generation_tokens), count(*) FROM interval_row GROUP BY ALL") == rows


def test_a_file_that_lies_twice_in_a_bundle_counts_once(store: Store, tmp_path: Path):
    line = scrape(0, {TOKENS: 1})
    results = load(store, [bundle(tmp_path / "x", a__jsonl=line, b__jsonl=line)])
    assert [result.added for result in results] == [True, False]
    assert results[1].message == "already loaded (as x/a.jsonl): nothing added"


def test_the_same_numbers_in_another_file_count_once(store: Store, tmp_path: Path):
    rows = [(0.0, {TOKENS: 1}), (1.0, {TOKENS: 5})]
    load(store, [scrapes(tmp_path / "a.jsonl", rows)])
    load(store, [scrapes(tmp_path / "b.jsonl", [*rows, (2.0, {TOKENS: 6})])])
    assert store.rows("SELECT increase FROM delta ORDER BY ts") == [(4,), (1,)]


# -- whole or not at all -----------------------------------------------------------------------------------------------


def test_two_recorders_of_one_server_count_once(store: Store, tmp_path: Path):
    """The second one's answers took longer: its stamps are later than values that the first one saw before them."""
    values = [{TOKENS: 1000 + 10 * at, START: 5.0, series("num_requests_running"): 1} for at in range(20)]
    first = "".join(scrape(at, one) for at, one in enumerate(values))
    second = "".join(scrape(at, one, dur=1.1) for at, one in enumerate(values[:12]))
    alone = "".join(scrape(at, {TOKENS: 1000 + 10 * at, START: 5.0}, "http://other:1/metrics") for at in range(5))
    load(store, [bundle(tmp_path / "a", m__jsonl=first)])
    results = by_name(load(store, [bundle(tmp_path / "b", m__jsonl=second, other__jsonl=alone)]))
    assert results["m.jsonl"].message == "12 scrapes lie close beside those of another recording of the same server: not used"
    assert results["other.jsonl"].message == ""
    assert store.rows("SELECT instance, sum(increase) FROM delta WHERE quantity = 'generation_tokens' GROUP BY 1 ORDER BY 1") == [
        ("127.0.0.1:8000", 190),
        ("other:1", 40),
    ]
    assert store.rows("SELECT count(*) FROM scrape WHERE instance = '127.0.0.1:8000'") == [(20,)]


def test_a_recording_that_goes_on_where_another_ended_is_taken(store: Store, tmp_path: Path):
    for name, start in (("a", 0), ("b", 10)):
        text_of = "".join(scrape(start + at + (start and 0.5), {TOKENS: 10 * (start + at), START: 5.0}) for at in range(10))
        (result,) = load(store, [bundle(tmp_path / name, m__jsonl=text_of)])
        assert result.message == ""
    assert store.rows("SELECT sum(increase) FROM delta") == [(190,)]


def test_a_file_that_fails_leaves_nothing_and_does_not_stop_the_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read = otlp_spans.read

    def broken(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:
        yield from (batch for batch in read(stream, reference_ts) if batch.table != "source_file")
        yield Batch(
            "series", {"series": [0], "instance": ["h"], "name": ["n"], "engine": [None], "model_name": [None], "labels": ["{}"]}
        )
        raise ValueError("no reader is perfect")

    folder = bundle(tmp_path / "x", a__jsonl=scrape(0, {TOKENS: 1}), b__jsonl=span("r", 1), c__log=started() + stats())
    with monkeypatch.context() as patch:
        patch.setattr(otlp_spans, "read", broken)
        results = by_name(load(store, [folder]))
    assert results["b.jsonl"].message == "could not be loaded, nothing of it was stored: ValueError: no reader is perfect"
    assert not results["b.jsonl"].added
    assert results["a.jsonl"].added
    assert results["c.log"].added
    found = counts(store)
    assert (found["source_file"], found["request"], found["series"], found["sample"], found["stat"]) == (2, 0, 1, 1, 1)
    (again,) = [result for result in load(store, [folder]) if result.added]
    assert again.name == "b.jsonl"
    assert counts(store)["request"] == 1


def test_bad_lines_are_counted_and_named_by_number(store: Store, tmp_path: Path):
    good = scrape(0, {TOKENS: 1})
    (result,) = load(store, [bundle(tmp_path / "x", m__jsonl=good + "{nonsense\n" + good.replace("vllm:", "vllm;"))])
    assert (result.lines, result.rejected) == (3, 2)
    assert [reason.partition(":")[0] for reason in result.reasons] == ["line 2", "line 3"]
    assert store.rows("SELECT line FROM rejected_line ORDER BY line") == [(2,), (3,)]


def test_what_is_not_ours_is_listed(store: Store, tmp_path: Path):
    folder = bundle(
        tmp_path / "x",
        README__md="# About\n\nvLLM 0.24.0, slots.\n\n```\nvllm serve ./m --port 1\n```\n",
        truth__json=json.dumps({"client": {"ttft_s": {"mean": 1.0}}, "server": {"histogram_means": {}}}, indent=1),
        scenario__json=json.dumps({"name": "x", "server_args": ["--max-num-seqs", "4"], "segments": [{"n": 1}]}, indent=1),
        manifest__toml='title = "x"\n',
        empty__log="",
        meta__json=json.dumps(
            {"command": ["vllm", "serve", "./m", "--max-num-seqs", "4", "--port", "8000"], "load": {"start": 1.0}}, indent=1
        ),
    )
    results = by_name(load(store, [folder]))
    assert {name: result.format for name, result in results.items() if result.format} == {"meta.json": "vllm_command"}
    assert results["empty.log"].message == "empty"
    assert all(
        results[name].message.startswith("not recognised")
        for name in ("README.md", "truth.json", "scenario.json", "manifest.toml")
    )
    assert counts(store) == dict.fromkeys(TABLES, 0) | {"source_file": 1, "event": 1}
    assert store.rows("SELECT name FROM source_file") == [("meta.json",)]


def test_results_come_in_the_order_of_the_names(store: Store, tmp_path: Path):
    folder = bundle(tmp_path / "x", a__txt=text({TOKENS: 1}), b__log=stats(), c__jsonl=scrape(0, {TOKENS: 1}), d__md="x")
    assert [result.name for result in load(store, [folder])] == ["a.txt", "b.log", "c.jsonl", "d.md"]


def test_progress_names_each_file(store: Store, tmp_path: Path):
    said: list[str] = []
    load(store, [bundle(tmp_path / "x", b__log=stats(), c__jsonl=scrape(0, {TOKENS: 1}))], progress=said.append)
    assert said == ["x/c.jsonl", "x/b.log"]


# -- which bundle ------------------------------------------------------------------------------------------------------


def test_plain_files_named_together_are_one_bundle(store: Store, tmp_path: Path):
    folder = bundle(tmp_path / "mine", a__jsonl=scrape(0, {TOKENS: 1}), b__log=stats(), c__log=stats(running=5))
    load(store, [folder / "a.jsonl", folder / "b.log"])
    assert set(store.rows("SELECT bundle FROM source_file")) == {("mine",)}
    assert server_of(store) == {"a.jsonl": "127.0.0.1:8000", "b.log": "127.0.0.1:8000"}
    load(store, [folder / "c.log"])
    assert store.rows("SELECT bundle, instance FROM source_file WHERE name = 'c.log'") == [("c.log", "c.log")]


def test_folders_and_archives_are_bundles_of_their_own(store: Store, tmp_path: Path):
    one = bundle(tmp_path / "one", a__jsonl=scrape(0, {TOKENS: 1}, "http://one:1/metrics"))
    two = bundle(tmp_path / "two", a__log=stats())
    load(store, [one, two])
    assert store.rows("SELECT bundle, instance FROM source_file ORDER BY 1") == [("one", "one:1"), ("two", "two")]


def test_the_current_folder_has_a_name(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(bundle(tmp_path / "here", a__log=stats()))
    load(store, [Path()])
    assert store.rows("SELECT bundle, instance FROM source_file") == [("here", "here")]


# -- which server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost", "[::]"])
def test_a_log_is_joined_to_the_scraped_server_by_its_port(host: str, store: Store, tmp_path: Path):
    load(
        store,
        [
            bundle(
                tmp_path / "x", m__jsonl=scrape(0, {TOKENS: 1}, "http://gpu7:8000/metrics"), server__log=started(host) + stats()
            )
        ],
    )
    assert server_of(store) == {"m.jsonl": "gpu7:8000", "server.log": "gpu7:8000"}


def test_a_log_of_another_machine_is_another_server(store: Store, tmp_path: Path):
    metrics = scrape(0, {TOKENS: 1}, "http://10.0.0.1:8000/metrics")
    load(store, [bundle(tmp_path / "x", m__jsonl=metrics, server__log=started("10.0.0.2") + stats())])
    assert server_of(store) == {"m.jsonl": "10.0.0.1:8000", "server.log": "10.0.0.2:8000"}


def test_a_log_with_another_port_is_another_server(store: Store, tmp_path: Path):
    load(store, [bundle(tmp_path / "x", m__jsonl=scrape(0, {TOKENS: 1}), server__log=started(port=9000) + stats())])
    assert server_of(store)["server.log"] == "127.0.0.1:9000"


def test_a_log_that_names_no_server_is_of_the_only_one(store: Store, tmp_path: Path):
    load(store, [bundle(tmp_path / "x", m__jsonl=scrape(0, {TOKENS: 1}), server__log=stats())])
    assert server_of(store)["server.log"] == "127.0.0.1:8000"


@pytest.mark.parametrize(("first", "second"), [("a.log", "b.log"), ("b.log", "a.log")])
def test_two_logs_of_which_one_names_the_server(first: str, second: str, store: Store, tmp_path: Path):
    folder = bundle(tmp_path / "x")
    (folder / first).write_text(started() + stats())
    (folder / second).write_text(stats("11-29 12:00:20"))
    load(store, [folder])
    assert server_of(store) == {"a.log": "127.0.0.1:8000", "b.log": "127.0.0.1:8000"}


def test_a_bundle_that_names_no_server_is_one_server_of_its_name(store: Store, tmp_path: Path):
    load(store, [bundle(tmp_path / "mine", a__txt=text({TOKENS: 1}), server__log=stats(), spans__jsonl=span("r", 1))])
    assert server_of(store) == {"a.txt": None, "server.log": "mine", "spans.jsonl": None}
    assert store.rows("SELECT DISTINCT instance FROM scrape UNION ALL SELECT instance FROM request") == [("mine",), ("mine",)]


def test_what_could_be_of_several_servers_is_asked(store: Store, tmp_path: Path):
    files = {
        "server__log": stats(),
        "kv__jsonl": kv_event(1, 1, [1]),
        "command__txt": "vllm serve ./m --max-num-seqs 4\n",
        "t__txt": text({TOKENS: 1}),
    }
    folder = two_servers(tmp_path / "x", **files, spans__jsonl=span("r", 1))
    results = by_name(load(store, [folder]))
    for name in ("server.log", "kv.jsonl", "command.txt"):
        assert results[name].message == f"which server is this? The bundle has several: --instance {name}=HOST:PORT"
        assert server_of(store)[name] is None
    assert results["spans.jsonl"].message == "1 spans belong to no known server: add its log, or --instance spans.jsonl=HOST:PORT"
    assert "t.txt=HOST:PORT" in results["t.txt"].message
    assert not results["t.txt"].added
    assert store.rows("SELECT DISTINCT instance FROM kv_event UNION ALL SELECT instance FROM request") == [(None,), (None,)]


def test_an_answer_is_taken(store: Store, tmp_path: Path):
    files = {"server__log": stats(), "kv__jsonl": kv_event(1, 1, [1]), "command__txt": "vllm serve ./m --max-num-seqs 4\n"}
    folder = two_servers(tmp_path / "x", **files, spans__jsonl=span("r", 1, pid=99))
    asked = {"server.log": "b:8001", "kv.jsonl": "a:8000", "command.txt": "b:8001", "spans.jsonl": "a:8000"}
    assert not any(result.message for result in load(store, [folder], instances=asked))
    found = server_of(store)
    assert {name: found[name] for name in ("server.log", "kv.jsonl", "command.txt")} == {
        k: v for k, v in asked.items() if k != "spans.jsonl"
    }
    assert store.rows("SELECT DISTINCT instance FROM kv_event UNION ALL SELECT instance FROM request") == [
        ("a:8000",),
        ("a:8000",),
    ]


def test_an_answer_is_taken_although_the_file_is_there_already(store: Store, tmp_path: Path):
    folder = two_servers(tmp_path / "x", server__log=stats(), spans__jsonl=span("r", 1))
    load(store, [folder])
    load(store, [folder], instances={"server.log": "b:8001", "spans.jsonl": "b:8001"})
    assert server_of(store)["server.log"] == "b:8001"
    assert store.rows("SELECT instance FROM request") == [("b:8001",)]


def test_answers_name_servers_where_nothing_else_does(store: Store, tmp_path: Path):
    folder = bundle(tmp_path / "x", a__log=stats(), b__log=stats(running=2), t__txt=text({TOKENS: 1}))
    results = by_name(load(store, [folder], instances={"a.log": "h:1", "b.log": "h:2"}))
    assert server_of(store) == {"a.log": "h:1", "b.log": "h:2"}
    assert "several servers" in results["t.txt"].message


def test_a_bind_all_address_that_two_servers_could_have_is_asked(store: Store, tmp_path: Path):
    metrics = {f"{host}__jsonl": scrape(0, {TOKENS: 1}, f"http://{host}:8000/metrics") for host in ("a", "b")}
    results = by_name(load(store, [bundle(tmp_path / "x", **metrics, server__log=started("0.0.0.0") + stats())]))
    assert server_of(store)["server.log"] is None
    assert "--instance server.log=HOST:PORT" in results["server.log"].message


def test_logs_of_two_pods_with_one_address_are_two_servers(store: Store, tmp_path: Path):
    """In a pod every server is 0.0.0.0:8000 with process 1."""
    lines = [stats(f"11-29 12:00:{at:02}", running=at, pid=1) for at in range(10, 50, 10)]
    pods = {f"{name}__log": started("0.0.0.0", pid=1) + "".join(lines) for name in ("one", "two")}
    pods["two__log"] += stats("11-29 12:00:50", pid=1)  # the same file twice would count once
    load(store, [bundle(tmp_path / "x", **pods)])
    assert server_of(store) == {"one.log": "0.0.0.0:8000 one.log", "two.log": "0.0.0.0:8000 two.log"}
    load(store, [bundle(tmp_path / "x", **pods)])
    assert server_of(store) == {"one.log": "0.0.0.0:8000 one.log", "two.log": "0.0.0.0:8000 two.log"}


def test_logs_of_two_pods_are_asked_where_one_of_them_is_scraped(store: Store, tmp_path: Path):
    lines = "".join(stats(f"11-29 12:00:{at:02}") for at in range(10, 50, 10))
    pods = {f"{name}__log": started("0.0.0.0") + lines + end for name, end in (("one", ""), ("two", stats("11-29 12:00:50")))}
    folder = bundle(tmp_path / "x", m__jsonl=scrape(0, {TOKENS: 1}, "http://10.0.0.1:8000/metrics"), **pods)
    results = by_name(load(store, [folder]))
    assert server_of(store) == {"m.jsonl": "10.0.0.1:8000", "one.log": None, "two.log": None}
    assert results["one.log"].message == "which server is this? The bundle has several: --instance one.log=HOST:PORT"
    load(store, [folder], instances={"one.log": "10.0.0.1:8000", "two.log": "10.0.0.2:8000"})
    assert server_of(store) == {"m.jsonl": "10.0.0.1:8000", "one.log": "10.0.0.1:8000", "two.log": "10.0.0.2:8000"}


def test_a_log_that_was_rotated_is_of_one_server(store: Store, tmp_path: Path):
    first = started("0.0.0.0") + "".join(stats(f"11-29 12:00:{at:02}") for at in range(10, 50, 10))
    second = started("0.0.0.0").replace("11:59:00", "12:01:00") + "".join(
        stats(f"11-29 12:01:{at:02}") for at in range(10, 50, 10)
    )
    load(store, [bundle(tmp_path / "x", server__log=second, server__log__1=first)])
    assert set(server_of(store).values()) == {"0.0.0.0:8000"}


def test_a_command_is_joined_by_its_port(store: Store, tmp_path: Path):
    load(store, [two_servers(tmp_path / "x", command__txt="vllm serve ./m --max-num-seqs 4 --host localhost --port 8001\n")])
    assert server_of(store)["command.txt"] == "b:8001"


def test_spans_are_joined_to_one_of_two_servers_by_the_process(store: Store, tmp_path: Path):
    logs = {"p__log": started("0.0.0.0", 8000, 100) + stats(pid=100), "d__log": started("0.0.0.0", 8001, 200) + stats(pid=200)}
    spans = span("p1", 1, 100) + span("d1", 2, 200) + span("p2", 3, 100) + span("x1", 4, 300) + span("y1", 5, None)
    results = by_name(load(store, [two_servers(tmp_path / "x", **logs, spans__jsonl=spans)]))
    found = dict(store.rows("SELECT request_id, instance FROM request"))
    assert found == {"p1": "a:8000", "p2": "a:8000", "d1": "b:8001", "x1": None, "y1": None}
    assert results["spans.jsonl"].message.startswith("2 spans belong to no known server")


def test_spans_are_joined_to_two_servers_that_only_logs_name(store: Store, tmp_path: Path):
    logs = {"a__log": started("h", 8000, 100) + stats(pid=100), "b__log": started("h", 8001, 200) + stats(pid=200)}
    load(store, [bundle(tmp_path / "x", **logs, spans__jsonl=span("one", 1, 100) + span("two", 2, 200))])
    assert dict(store.rows("SELECT request_id, instance FROM request")) == {"one": "h:8000", "two": "h:8001"}


def test_a_process_id_that_two_servers_have_joins_nothing(store: Store, tmp_path: Path):
    """Each container counts its processes from 1."""
    logs = {"a__log": started("h", 8000, 1) + stats(pid=1), "b__log": started("h", 8001, 1) + stats(pid=1)}
    results = by_name(load(store, [bundle(tmp_path / "x", **logs, spans__jsonl=span("one", 1, 1))]))
    assert store.rows("SELECT instance FROM request") == [(None,)]
    assert "belong to no known server" in results["spans.jsonl"].message


def test_clients_are_joined_by_the_url_that_they_called(store: Store, tmp_path: Path):
    lines = (
        client("1", 1, "http://a:8000/v1")
        + client("2", 2, "http://localhost:8001")
        + client("3", 3, "http://proxy:80/llm")
        + client("4", 4, None)
    )
    load(store, [two_servers(tmp_path / "x", client__jsonl=lines)])
    assert dict(store.rows("SELECT request_id, instance FROM request")) == {"1": "a:8000", "2": "b:8001", "3": None, "4": None}


def test_clients_behind_a_proxy_are_of_the_only_server(store: Store, tmp_path: Path):
    load(
        store,
        [
            bundle(
                tmp_path / "x",
                m__jsonl=scrape(0, {TOKENS: 1}),
                client__jsonl=client("1", 1, "http://proxy:80/llm") + client("2", 1, None),
            )
        ],
    )
    assert set(store.rows("SELECT instance FROM request")) == {("127.0.0.1:8000",)}


def test_a_file_loaded_alone_later_keeps_its_server(store: Store, tmp_path: Path):
    files = {
        "kv__jsonl": kv_event(1, 1, [1]),
        "client__jsonl": client("1", 1),
        "command__json": json.dumps({"command": ["vllm", "serve", "m"]}),
    }
    folder = bundle(tmp_path / "x", m__jsonl=scrape(0, {TOKENS: 1}), server__log=stats(), spans__jsonl=span("r", 1), **files)
    load(store, [folder])

    def servers() -> list[tuple[Any, ...]]:
        return store.rows(
            "SELECT name, instance FROM source_file UNION ALL SELECT request_id, instance FROM request "
            "UNION ALL SELECT 'kv', instance FROM kv_event ORDER BY 1"
        )

    before = servers()
    assert {instance for _, instance in before} <= {"127.0.0.1:8000", None}
    for file in sorted(folder.iterdir()):
        load(store, [file])
        assert servers() == before, file.name
    load(store, [folder / "kv.jsonl", folder / "client.jsonl", folder / "server.log"])
    assert servers() == before


def test_a_log_loaded_first_is_joined_when_its_scrapes_come(store: Store, tmp_path: Path):
    folder = bundle(tmp_path / "x", m__jsonl=scrape(0, {TOKENS: 1}), server__log=stats())
    load(store, [folder / "server.log"])
    assert server_of(store) == {"server.log": "server.log"}
    load(store, [folder])
    assert server_of(store)["server.log"] == "127.0.0.1:8000"


# -- texts without a time ----------------------------------------------------------------------------------------------

OLD: Final = {TOKENS: 10, START: 1000.0, series("num_requests_running"): 5}
NEW: Final = {TOKENS: 30, START: 1000.0, series("num_requests_running"): 1}


def tokens(store: Store) -> list[tuple[Any, ...]]:
    return store.rows("SELECT instance, dt_s, timed, generation_tokens, running, restarted FROM interval_row ORDER BY ts")


def test_one_text_is_a_state(store: Store, tmp_path: Path):
    (result,) = load(store, [bundle(tmp_path / "x", a__txt=text(OLD))])
    assert result.added
    assert tokens(store) == []
    assert store.rows("SELECT instance, ts, ok, timed FROM scrape") == [("x", 0, True, False)]


@pytest.mark.parametrize("names", [("a.txt", "b.txt"), ("b.txt", "a.txt")])
@pytest.mark.parametrize("how", ["folder", "files", "files the other way round"])
def test_two_texts_are_an_interval_whatever_their_order(how: str, names: tuple[str, str], store: Store, tmp_path: Path):
    folder = bundle(tmp_path / "x")
    for name, values in zip(names, (OLD, NEW), strict=True):
        (folder / name).write_text(text(values))
    paths = [folder] if how == "folder" else sorted(folder.iterdir(), reverse=how != "files")
    load(store, paths)
    assert tokens(store) == [("x", 1, False, 20, 1, False)]


def test_texts_of_two_processes_are_kept_apart_and_asked(store: Store, tmp_path: Path):
    """Two servers, or one before and after a restart: nothing in them says which."""
    restarted = {TOKENS: 3, START: 5000.0, series("num_requests_running"): 1}
    folder = bundle(tmp_path / "x", a__txt=text(restarted), b__txt=text(OLD), c__txt=text(NEW))
    results = by_name(load(store, [folder]))
    assert tokens(store) == [("b.txt", 1, False, 20, 1, False)]
    assert store.rows("SELECT instance FROM scrape ORDER BY 1") == [("a.txt",), ("b.txt",), ("b.txt",)]
    assert results["a.txt"].message.startswith("of another process than b.txt: two servers, or one before and after a restart?")
    assert results["b.txt"].message.startswith("of another process than a.txt")
    assert results["c.txt"].message == ""


def test_of_two_texts_of_one_server_the_process_that_started_later_is_the_later(store: Store, tmp_path: Path):
    restarted = {TOKENS: 3, START: 5000.0, series("num_requests_running"): 1}
    folder = bundle(tmp_path / "x", a__txt=text(restarted), b__txt=text(OLD))
    load(store, [folder], instances={"a.txt": "h:1", "b.txt": "h:1"})
    assert tokens(store) == [("h:1", 1, False, 3, 1, True)]


@pytest.mark.parametrize(
    ("second", "apart"),
    [
        ({TOKENS: 150}, False),
        ({TOKENS: 90}, False),  # the older one, then
        ({TOKENS: 90, series("prompt_tokens_total"): 50}, True),  # one counter fell, one grew
        ({series("generation_tokens_total").replace('"m"', '"other"'): 150}, True),
    ],
)
def test_without_a_start_time_counters_and_models_tell_processes_apart(second: dict, apart: bool, store: Store, tmp_path: Path):
    first = {TOKENS: 100, series("prompt_tokens_total"): 20}
    results = load(store, [bundle(tmp_path / "x", a__txt=text(first), b__txt=text(second))])
    assert len(store.rows("SELECT DISTINCT instance FROM scrape")) == 1 + apart
    assert all(("of another process" in one.message) == apart for one in results)


def test_several_texts_of_which_one_has_several_scrapes(store: Store, tmp_path: Path):
    load(store, [bundle(tmp_path / "x", a__txt=text({TOKENS: 100}) + text({TOKENS: 150}), b__txt=text({TOKENS: 7}))])
    assert store.rows("SELECT ts, increase FROM delta ORDER BY ts") == [(1, 93), (2, 50)]


def test_texts_loaded_one_by_one_follow_each_other(store: Store, tmp_path: Path):
    folder = bundle(tmp_path / "x", a__txt=text(OLD), b__txt=text(NEW))
    for name in ("a.txt", "b.txt"):
        load(store, [folder / name], instances={name: "h:1"})
    assert tokens(store) == [("h:1", 1, False, 20, 1, False)]


def test_a_text_is_not_used_beside_timed_scrapes_of_its_server(store: Store, tmp_path: Path):
    metrics = scrape(0, {TOKENS: 1}) + scrape(1, {TOKENS: 5})
    results = by_name(
        load(store, [bundle(tmp_path / "x", first__txt=text({TOKENS: 1}), metrics__jsonl=metrics, last__txt=text({TOKENS: 9}))])
    )
    for name in ("first.txt", "last.txt"):
        assert not results[name].added
        assert results[name].message == "has no time; timed scrapes of the same server are there: not used"
    assert store.rows("SELECT increase FROM delta") == [(4,)]
    (late,) = load(store, [bundle(tmp_path / "y", late__txt=text({TOKENS: 12}))], instances={"late.txt": "127.0.0.1:8000"})
    assert not late.added


def test_a_text_is_of_the_server_that_a_log_beside_it_names(store: Store, tmp_path: Path):
    load(store, [bundle(tmp_path / "x", a__txt=text(OLD), b__txt=text(NEW), server__log=started() + stats())])
    assert tokens(store) == [("127.0.0.1:8000", 1, False, 20, 1, False)]


# -- which year --------------------------------------------------------------------------------------------------------


def instants(store: Store) -> list[str]:
    return [datetime.fromtimestamp(ts, UTC).isoformat() for (ts,) in store.rows("SELECT ts FROM stat ORDER BY line")]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_the_year_of_a_log_is_that_of_the_scrapes_beside_it(order: tuple[str, str], store: Store, tmp_path: Path):
    old = NOON - 7 * 365.2425 * 86400
    files = {
        f"{order[0]}__jsonl": json.dumps({"t": old, "url": "http://h:1/m", "text": f"{TOKENS} 1\n"}) + "\n",
        f"{order[1]}__log": stats(),
    }
    load(store, [bundle(tmp_path / "x", **files)], now=NOON)
    assert instants(store) == ["2019-11-29T12:00:10+00:00"]


def test_the_year_of_a_log_is_that_of_the_spans_beside_it(store: Store, tmp_path: Path):
    load(store, [bundle(tmp_path / "x", spans__jsonl=span("r", -9 * 365.2425 * 86400), server__log=stats())], now=NOON)
    assert instants(store) == ["2017-11-29T12:00:10+00:00"]


@pytest.mark.parametrize(
    ("now", "stamp", "found"),
    [
        ("2027-01-05", "11-29 12:00:10", "2026-11-29T12:00:10+00:00"),
        ("2027-01-05", "01-03 12:00:10", "2027-01-03T12:00:10+00:00"),
        ("2026-11-30", "12-31 12:00:10", "2025-12-31T12:00:10+00:00"),
        ("2026-11-30", "11-29 12:00:10", "2026-11-29T12:00:10+00:00"),
        ("2028-03-01", "02-29 12:00:10", "2028-02-29T12:00:10+00:00"),
    ],
)
def test_a_log_alone_is_of_the_last_twelve_months(now: str, stamp: str, found: str, store: Store, tmp_path: Path):
    load(
        store, [bundle(tmp_path / "x", server__log=stats(stamp))], now=datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp()
    )
    assert instants(store) == [found]


def test_a_log_goes_on_into_the_next_year(store: Store, tmp_path: Path):
    lines = stats("12-31 23:59:50") + stats("01-01 00:00:00") + stats("01-01 00:00:10")
    load(store, [bundle(tmp_path / "x", server__log=lines)], now=datetime(2027, 6, 1, tzinfo=UTC).timestamp())
    assert instants(store) == ["2026-12-31T23:59:50+00:00", "2027-01-01T00:00:00+00:00", "2027-01-01T00:00:10+00:00"]


# -- nobody's words ----------------------------------------------------------------------------------------------------

MARK: Final = "XyzzyPlugh"  # stands in everything that a user could have written
TOKEN: Final = 987654321  # a token id

LOG: Final = (
    started()
    + f"""(APIServer pid=4711) INFO 11-29 12:00:01 [logger.py:42] Received request cmpl-1-0: prompt: '{MARK} tell me', params: SamplingParams(n=1, stop=['{MARK}']), prompt_token_ids: [1, {TOKEN}], lora_request: None.
(APIServer pid=4711) INFO 11-29 12:00:01 [logger.py:42] Received request chatcmpl-2: prompt: '{MARK}
{MARK} over several lines
Engine 000: {MARK}', params: SamplingParams(n=1)
(APIServer pid=4711) INFO 11-29 12:00:01 [async_llm.py:261] Added request cmpl-1-0.
(APIServer pid=4711) DEBUG 11-29 12:00:02 [x.py:1] Generated response cmpl-1-0: output: '{MARK}', output_token_ids: [{TOKEN}], finish_reason: stop
(APIServer pid=4711) INFO:     127.0.0.1:5 - "POST /v1/completions?prompt={MARK} HTTP/1.1" 200 OK
(APIServer pid=4711) INFO:     127.0.0.1:5 - "GET /v1/completions?q={MARK}&n=1#{MARK} HTTP/1.1" 404 Not Found
(APIServer pid=4711) ERROR 11-29 12:00:03 [serving_chat.py:200] Error in preprocessing prompt inputs
(APIServer pid=4711) ERROR 11-29 12:00:03 [serving_chat.py:200] Traceback (most recent call last):
(APIServer pid=4711) ERROR 11-29 12:00:03 [serving_chat.py:200] ValueError: This is no JSON: {MARK} {TOKEN}
(APIServer pid=4711) ERROR 11-29 12:00:03 [async_llm.py:420] Request cmpl-1-0 failed (bad request): {MARK}.
(APIServer pid=4711) ERROR 11-29 12:00:03 [async_llm.py:420] Request cmpl-2-0 failed due to {MARK}.
(APIServer pid=4711) WARNING 11-29 12:00:03 [protocol.py:112] The following fields were present in the request but ignored: {{'{MARK}'}}
(EngineCore_DP0 pid=9) ERROR 11-29 12:00:04 [dump_input.py:69] Dumping input data for V1 LLM engine with config: model='m'
(EngineCore_DP0 pid=9) ERROR 11-29 12:00:04 [dump_input.py:76] Dumping scheduler output for model execution: SchedulerOutput(scheduled_new_reqs=[NewRequestData(req_id=cmpl-1-0,prompt_token_ids=[{TOKEN}],prompt='{MARK}')])
(EngineCore_DP0 pid=9) ERROR 11-29 12:00:04 [core.py:700] EngineCore encountered a fatal error.
(EngineCore_DP0 pid=9) ERROR 11-29 12:00:04 [core.py:700] RuntimeError: {MARK}
(APIServer pid=4711) ERROR 11-29 12:00:04 [async_llm.py:480] vllm.v1.engine.exceptions.EngineDeadError: EngineCore died: {MARK}
"""
    + stats()
    + f"{MARK} a line of its own\n"
    + stats().rstrip("\n")[:-5]
    + f" {MARK}\n"
)
JSON_LOG: Final = "".join(
    json.dumps(
        {
            "asctime": f"2026-11-29 12:00:0{at},123",
            "levelname": "INFO",
            "name": "vllm.x",
            "processName": "P",
            "process": 1,
            "message": message,
        }
    )
    + "\n"
    for at, message in enumerate(
        [
            f"Received request cmpl-1-0: prompt: '{MARK}', params: SamplingParams(stop=['{MARK}']), prompt_token_ids: [{TOKEN}].",
            f"Request cmpl-1-0 failed: {MARK}",
            f"EngineCore encountered a fatal error. {MARK}",
            stats().partition("] ")[2].rstrip(),
        ],
    )
)


def test_nobodys_words_are_stored(store: Store, tmp_path: Path):
    words = {
        "prompt": f"{MARK} {MARK}",
        "output": MARK,
        "messages": [{"role": "user", "content": MARK}],
        "error": f"HTTP 400 {MARK}",
        "segment": MARK,
        "text": MARK,
        "headers": {"x": MARK},
        "token_ids": [TOKEN],
        "chunks_rel": [[0.1, 1], [0.2, 2, MARK]],
    }
    attributes = {
        "gen_ai.prompt": MARK,
        "gen_ai.completion": MARK,
        "llm.input_messages": f'[{{"content": "{MARK}"}}]',
        "user": MARK,
    }
    folder = bundle(
        tmp_path / "x",
        m__jsonl=scrape(0, {TOKENS: 1})
        + scrape(1, {TOKENS: 2})
        + json.dumps({"t": NOON + 2, "url": "http://127.0.0.1:8000/metrics", "error": MARK})
        + "\n",
        bad__jsonl=scrape(3, {TOKENS: 3}) + f'{{"t": 1, "url": "http://127.0.0.1:8000/", "text": {MARK}\n{MARK}\n',
        a__log=LOG,
        b__log=JSON_LOG,
        client__jsonl=client("1", 1, **words)
        + client("2", 2, status="error", **words)
        + f'{{"id": "3", "prompt": "{MARK}"}}\n{MARK}\n',
        spans__jsonl=span("cmpl-1-0", 1, **attributes)
        + f'{{"resourceSpans": [{{"scopeSpans": [{{"spans": [{{"name": "llm_request", "{MARK}": 1}}]}}]}}]}}\n{MARK}\n',
        kv__jsonl=kv_event(1, 1, [11, 12], [TOKEN, TOKEN + 1], extra_keys=[[MARK], None], lora_name=None)
        + kv_event(2, 2, [13], [MARK, TOKEN], extra_keys=[["salt", MARK]])
        + f'{{"seq": 3, "batch": ["{MARK}"]}}\n',
        note__txt=f"a note: {MARK}\n",
    )
    results = load(store, [folder])
    formats = {result.name: result.format for result in results if result.added}
    assert set(formats.values()) == {"prometheus_text", "vllm_log", "request_lines", "otlp_spans", "kv_events"}
    rows = counts(store)
    assert all(rows[table] for table in ("stat", "event", "request", "kv_event", "scrape", "rejected_line")), rows
    assert found(store, MARK) == []
    assert found(store, MARK.lower()) == []
    assert found(store, str(TOKEN)) == []
    assert not any(MARK in str(result) or str(TOKEN) in str(result) for result in results)


def found(store: Store, word: str) -> list[str]:
    """Return every table and column in which a word (or a number) stands."""
    seen = []
    for (table,) in store.rows("SELECT table_name FROM duckdb_tables() ORDER BY table_name"):
        columns = [row[0] for row in store.rows(f"SELECT column_name FROM (DESCRIBE {table})")]
        holds = ", ".join(f'coalesce(bool_or(contains(lower("{column}"::VARCHAR), $word)), false)' for column in columns)
        hits = store.rows(f"SELECT {holds} FROM {table}", {"word": word.lower()})[0]
        seen += [f"{table}.{column}" for column, hit in zip(columns, hits, strict=True) if hit]
    return seen


def test_the_search_for_words_finds_them(store: Store):
    assert {name for (name,) in store.rows("SELECT table_name FROM duckdb_tables()")} > set(TABLES)
    store.add(
        Batch(
            "kv_event", {"line": [1], "ts": [0.0], "engine": ["0"], "source": ["s"], "kind": ["k"], "block_hashes": [["a", MARK]]}
        ),
        file_id=1,
    )
    store.add(Batch("request", {"line": [1], "source": ["s"], "prompt_tokens": [TOKEN]}), file_id=1)
    assert found(store, MARK) == ["kv_event.block_hashes"]
    assert found(store, str(TOKEN)) == ["request.prompt_tokens"]


def test_packed_files_are_read_as_they_are(store: Store, tmp_path: Path):
    folder = bundle(
        tmp_path / "x",
        a__jsonl=gzip.compress(scrape(0, {TOKENS: 1}).encode()),
        b__log__gz=gzip.compress((started() + stats()).encode()),
    )
    assert [(result.format, result.added) for result in load(store, [folder])] == [("prometheus_text", True), ("vllm_log", True)]
