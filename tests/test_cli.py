"""The command line: exit statuses, messages that name file and line, the JSON contract, and what a run leaves behind."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from recordings import DATA, INCIDENTS, NOON, ROOT, finished, judged, scrape, scrapes, series, started, stats, text
from typer.testing import CliRunner, Result

from analyzers.links import CHAIN
from app.cli import app
from app.reports import json as json_report

TOKENS: Final = series("generation_tokens_total")
RUNNING: Final = series("num_requests_running")
START: Final = series("process_start_time_seconds", None)
WAITS: Final = {"ttft": 0.5, "queue": 0.25, "prefill": 0.2, "decode": 1.0, "e2e": 1.5}
CASE_08: Final = str(next((DATA / "cases").glob("08-*/server.log")))
CASE_10: Final = str(next((DATA / "cases").glob("10-*/server.log")))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's data folder, which is empty."""
    data = tmp_path / "home"
    data.mkdir()
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    return data


def weaklink(*arguments: object) -> Result:
    """Run a verb in this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def analyzed(*arguments: object, status: int = 0) -> dict[str, Any]:
    """Return the JSON of `weaklink analyze`."""
    result = weaklink("analyze", *arguments, "--format", "json")
    assert result.exit_code == status, result.stderr
    document = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    check(document, CONTRACT)
    return document


def requests(path: Path, counts: Iterable[int] = (0, 50, 100), restart_at: int | None = None) -> Path:
    """Write a recording of requests that finish, by scrapes a second apart."""
    rows = []
    for at, n in enumerate(counts):
        value = n if restart_at is None or at < restart_at else n - list(counts)[restart_at - 1]
        start = 100.0 if restart_at is None or at < restart_at else NOON + at
        rows.append((float(at), {**finished(value, **WAITS), RUNNING: 2, START: start}))
    return scrapes(path, rows)


# -- the JSON contract -------------------------------------------------------------------------------------------------

NUMBER: Final = (float, int, type(None))
TEXT: Final = (str, type(None))
PART: Final = {
    "link": {module.LINK.name for module in CHAIN},
    "seconds": NUMBER,
    "cells": {"frontend?": NUMBER, "queue?": NUMBER, "prefill?": NUMBER, "decode?": NUMBER, "output?": NUMBER},
    "range_s": (list, type(None)),
    "saves_s": NUMBER,
    "status": {"limiting", "contributing", "ok", "unknown"},
    "conditions": [str],
    "evidence": [str],
}


def target(*stages: str) -> dict[str, Any]:
    return {
        "measured_s": NUMBER,
        "floor_s": NUMBER,
        "unexplained_s": NUMBER,
        "stages": dict.fromkeys(stages, NUMBER),
        "parts": [PART],
        "limiting": {None, *(module.LINK.name for module in CHAIN)},
        "runner_up": {None, *(module.LINK.name for module in CHAIN)},
        "verdict": {"limited", "healthy", "undetermined"},
        "cannot_determine": [{"what": str, "measure": str}],
    }


TARGETS: Final = {
    "e2e": target("frontend", "queue", "prefill", "decode", "output"),
    "ttft": target("frontend", "queue", "prefill"),
    "tpot": target("decode"),
}
CONTRACT: Final = {  # issue 3; more keys may be there, none of these may go or change its kind
    "weaklink": str,
    "source": {
        "files": [{"name": str, "format": TEXT, "lines": int, "rejected": int}],
        "vllm_version": (str, list, type(None)),
        "level": {"state", "metrics", "logs", "requests", "hashes"},
        "restarts": int,
    },
    "window": {"start": TEXT, "end": TEXT, "model": (str, list, type(None)), "engines": [str]},
    "requests": {"finished": int, "aborted": (int, type(None))},
    "engines": [{"instance": str, "engine": str, "role": str, "requests": int, "targets": TARGETS}],
    "targets": {name: (shape, type(None)) for name, shape in TARGETS.items()},
}


def check(value: Any, shape: Any, where: str = "$") -> None:
    """Compare a document with a shape: a type, a set of values, [items], {key: shape}, or a tuple of these; `key?` may be missing."""
    if isinstance(shape, tuple):
        simple = tuple(one for one in shape if isinstance(one, type))
        if isinstance(value, simple):
            return
        others = [one for one in shape if not isinstance(one, type)]
        assert others, f"{where}: {value!r}"
        (shape,) = others
    if isinstance(shape, type):
        assert isinstance(value, shape), f"{where}: {value!r}"
        assert not (shape is int and isinstance(value, bool)), where
    elif isinstance(shape, set):
        assert value in shape, f"{where}: {value!r}"
    elif isinstance(shape, list):
        assert isinstance(value, list), where
        for at, item in enumerate(value):
            check(item, shape[0], f"{where}[{at}]")
    else:
        assert isinstance(value, dict), where
        missing = {key for key in shape if not key.endswith("?")} - value.keys()
        assert not missing, f"{where}: {missing}"
        for key, inner in shape.items():
            if key.removesuffix("?") in value:
                check(value[key.removesuffix("?")], inner, f"{where}.{key}")


@pytest.mark.parametrize("name", ["prefill_backlog", "kv_transfer", "prefix_cache_miss", "moe_imbalance"])
def test_the_contract_holds_for_recordings(name: str):
    document = json.loads(json_report.render(judged(INCIDENTS / name)))
    check(document, CONTRACT)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document["window"]["start"])
    for one in [document, *document["engines"]]:
        for found in one["targets"].values():
            if found and found["measured_s"] is not None:
                assert [part["link"] for part in found["parts"]] == [module.LINK.name for module in CHAIN]


def test_a_changed_document_breaks_the_contract():
    document = json.loads(json_report.render(judged(INCIDENTS / "healthy")))
    check(document, CONTRACT)
    for change in (
        lambda d: d.pop("requests"),
        lambda d: d["source"].update(level="some"),
        lambda d: d["targets"]["e2e"]["stages"].pop("decode"),
        lambda d: d["targets"]["ttft"]["parts"][0].update(seconds="1"),
        lambda d: d["engines"][0]["targets"]["tpot"].update(verdict="ok"),
    ):
        changed = json.loads(json.dumps(document))
        change(changed)
        with pytest.raises(AssertionError):
            check(changed, CONTRACT)


@pytest.mark.parametrize(
    "path", sorted((DATA / "cases").glob("*/server*.log")), ids=lambda path: f"{path.parent.name[:2]}-{path.stem}"
)
def test_the_contract_holds_for_pasted_logs(path: Path):
    document = analyzed(path)
    assert document["source"]["level"] == "state"
    assert document["source"]["files"][0]["format"] == "vllm_log"


# -- exit statuses -----------------------------------------------------------------------------------------------------


def test_0_judged(tmp_path: Path):
    document = analyzed(requests(tmp_path / "m.jsonl"))
    assert document["requests"] == {"finished": 100, "aborted": 0}
    assert document["targets"]["e2e"]["measured_s"] == pytest.approx(1.5)
    assert document["targets"]["ttft"]["stages"] == pytest.approx({"frontend": 0.05, "queue": 0.25, "prefill": 0.2})
    assert document["targets"]["tpot"]["measured_s"] == pytest.approx(0.1)


def test_0_undetermined():
    document = analyzed(CASE_10)
    assert {found["verdict"] for found in document["targets"].values()} == {"undetermined"}
    assert all(found["cannot_determine"] for found in document["targets"].values())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("analyze", CASE_08, "--from", "yesterday"),
            "--from/--to: cannot read 'yesterday'; expected 2026-11-29T15:33:00Z or epoch",
        ),
        (("analyze", CASE_08, "--to", "nan"), "--from/--to: cannot read 'nan'"),
        (("analyze", CASE_08, "--from", "20", "--to", "10"), "--from 20 is not before --to 10"),
        (("analyze", CASE_08, "--instance", "server.log"), "--instance: expected NAME=HOST:PORT"),
        (("analyze", CASE_08, "--instance", "server.log="), "--instance: expected NAME=HOST:PORT"),
        (("load", CASE_08, "--instance", "server.log"), "--instance: expected NAME=HOST:PORT"),
    ],
)
def test_1_wrong_arguments(arguments: tuple[str, ...], says: str):
    result = weaklink(*arguments)
    assert result.exit_code == 1
    assert f"weaklink: {says}" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments", [("--nonsense",), ("analyze", "--target", "x"), ("analyze", "--format", "x"), ("nonsense",), ("load",)]
)
def test_1_wrong_options(arguments: tuple[str, ...]):
    done = run(*arguments)
    assert done.returncode == 1
    assert "Usage: " in done.stderr
    assert "Traceback" not in done.stderr


def run(*arguments: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **env}
    command = [sys.executable, "-m", "app", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_1_a_store_that_cannot_be_opened(tmp_path: Path):
    (tmp_path / "x.duckdb").write_text("no database " * 2000)
    for arguments in (("analyze",), ("status",), ("load", CASE_08), ("analyze", CASE_08)):
        result = weaklink(*arguments, "--store", tmp_path / "x.duckdb")
        assert result.exit_code == 1
        assert "x.duckdb: cannot be opened" in result.stderr


def test_2_a_path_that_does_not_exist(tmp_path: Path):
    for verb in ("analyze", "load"):
        result = weaklink(verb, tmp_path / "nowhere")
        assert result.exit_code == 2
        assert "nowhere: no such file or folder" in result.stderr


# -- bad input ---------------------------------------------------------------------------------------------------------


def refused(*arguments: object) -> str:
    """Return what is said of input in which nothing can be used: undetermined, status 2, never healthy."""
    document = analyzed(*arguments, status=2)
    assert document["engines"] == []
    assert {found["verdict"] for found in document["targets"].values()} == {"undetermined"}
    assert all(found["cannot_determine"] for found in document["targets"].values())
    result = weaklink("analyze", *arguments)
    assert result.exit_code == 2
    assert "nothing limits" not in result.stdout.lower()
    assert "Cannot tell what limits" in result.stdout.splitlines()[0]
    assert f"weaklink: nothing usable in {arguments[0]}: expected /metrics texts of vLLM, a vLLM server log" in result.stderr
    return result.stderr


def test_an_empty_store(home: Path):
    result = weaklink("analyze")
    assert result.exit_code == 2
    assert f"nothing usable in {home / 'weaklink' / 'weaklink.duckdb'}" in result.stderr
    document = analyzed(status=2)
    assert document["source"]["files"] == []


def test_an_empty_bundle(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    refused(tmp_path / "empty.zip")
    (tmp_path / "empty.log").touch()
    assert "empty.log/empty.log: empty" in refused(tmp_path / "empty.log")


def test_a_bundle_without_one_vllm_series(tmp_path: Path):
    values = {
        series("process_cpu_seconds_total", None): 1,
        series("http_requests_total", None): 2,
        "python_info": 1,
        "node_load1": 3,
    }
    scrapes(tmp_path / "x" / "m.jsonl", [(0, values), (1, values)])
    said = refused(tmp_path / "x")
    assert "x/m.jsonl: holds nothing that could be judged" in said


def test_a_bundle_of_other_files(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("The server was slow on Tuesday.\n")
    assert "notes.txt/notes.txt: not recognised; expected one of the formats that `weaklink formats` lists" in refused(
        tmp_path / "notes.txt"
    )


def test_a_text_in_another_encoding(tmp_path: Path):
    (tmp_path / "m.txt").write_bytes(text({TOKENS: 1}).encode("utf-16"))
    assert "m.txt/m.txt: not recognised" in refused(tmp_path / "m.txt")


def test_cut_archives(tmp_path: Path):
    path = tmp_path / "up.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(INCIDENTS / "slots" / "metrics.jsonl.gz", "metrics.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-200])
    assert "up.zip/up.zip: not a complete zip archive" in refused(path)
    path = tmp_path / "metrics.jsonl.gz"
    path.write_bytes((INCIDENTS / "slots" / "metrics.jsonl.gz").read_bytes()[:100])
    assert "metrics.jsonl.gz: " in refused(path)


def test_of_a_cut_recording_what_came_before_is_judged_and_the_cut_is_shown(tmp_path: Path):
    whole = (INCIDENTS / "slots" / "metrics.jsonl.gz").read_bytes()
    path = tmp_path / "metrics.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    result = weaklink("analyze", path)
    assert result.exit_code == 0
    assert "Not used or not fully read: metrics.jsonl.gz: damaged or cut short after" in result.stdout
    assert 0 < analyzed(path)["requests"]["finished"] < 290


def test_numbers_that_are_none(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    requests(path)
    lines = path.read_text().splitlines(keepends=True)
    odd = {**finished(60, **WAITS), RUNNING: "NaN", TOKENS: "+Inf", series("kv_cache_usage_perc"): "-Inf", "vllm:bad{": "1"}
    lines.insert(2, scrape(1.5, odd))
    path.write_text("".join(lines))
    document = analyzed(path)
    assert document["requests"]["finished"] == 100
    assert document["targets"]["e2e"]["measured_s"] == pytest.approx(1.5)
    (file,) = document["source"]["files"]
    assert (file["lines"], file["rejected"]) == (4, 1)
    assert file["reasons"] == [f"line 3: text line {len(odd)}: expected: name{{labels}} value [timestamp]"]
    assert "m.jsonl: 1 of 4 lines rejected (first: line 3: text line" in weaklink("analyze", path).stdout


def test_a_text_whose_numbers_are_all_none(tmp_path: Path):
    path = tmp_path / "m.txt"
    path.write_text(text({TOKENS: "NaN", RUNNING: "NaN"}) + text({TOKENS: "NaN", RUNNING: "+Inf"}))
    document = analyzed(path, status=0)
    assert {found["verdict"] for found in document["targets"].values()} == {"undetermined"}


def test_a_restart_in_the_middle(tmp_path: Path):
    document = analyzed(requests(tmp_path / "m.jsonl", (10, 40, 70, 100, 130), restart_at=3))
    assert document["source"]["restarts"] == 1
    assert document["requests"]["finished"] == 120
    assert document["targets"]["e2e"]["measured_s"] == pytest.approx(1.5)


def test_bad_lines_of_a_log_are_named_and_the_others_count(tmp_path: Path):
    path = tmp_path / "server.log"
    path.write_bytes(
        (started() + stats()).encode() + stats().encode()[:-40] + b"\n\xff\xfe\x00" + stats("11-29 12:00:30").encode()
    )
    result = weaklink("load", path, "--format", "json")
    (file,) = json.loads(result.stdout)
    assert file["rejected"] == 1
    assert file["reasons"][0].startswith("line 5: expected: ")


def test_a_question_is_shown(tmp_path: Path):
    for host in ("a", "b"):
        scrapes(tmp_path / "x" / f"{host}.jsonl", [(t, {TOKENS: t}) for t in (0, 1)], f"http://{host}:1/metrics")
    (tmp_path / "x" / "server.log").write_text(stats())
    assert (
        "server.log: which server is this? The bundle has several: --instance server.log=HOST:PORT"
        in weaklink("analyze", tmp_path / "x").stdout
    )
    assert "which server" not in weaklink("analyze", tmp_path / "x", "--instance", "server.log=a:1").stdout


def test_good_and_bad_paths_together(tmp_path: Path):
    (tmp_path / "cut.zip").write_bytes(b"PK\x03\x04 cut")
    result = weaklink("analyze", tmp_path / "cut.zip", requests(tmp_path / "m.jsonl"))
    assert result.exit_code == 0
    assert "Not used or not fully read: cut.zip: not a complete zip archive" in result.stdout


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of a minute with two servers, a:1 with one engine and b:2 with two; these tests only read it."""
    folder = tmp_path_factory.mktemp("fleet")
    for host, engines in (("a:1", "0"), ("b:2", "01")):
        rows = [(at, {name: value for label in engines for name, value in busy(at, label).items()}) for at in range(61)]
        scrapes(folder / "two" / f"{host}.jsonl", rows, f"http://{host}/metrics")
    assert weaklink("load", folder / "two", "--store", folder / "x.duckdb").exit_code == 0
    return folder / "x.duckdb"


def busy(at: int, engine: str) -> dict[str, float]:
    """Return an engine's series `at` seconds after noon: one request a second, engine 1 two."""
    return {**finished(at * (1 + int(engine)), engine, **WAITS), series("num_requests_running", engine): 2}


@pytest.mark.parametrize(("name", "first"), [("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E")])
def test_a_target_is_shown_first(name: str, first: str, opened: Path):
    lines = weaklink("analyze", "--store", opened, "--engine", "a:1/0", "--target", name).stdout.splitlines()
    assert first in lines[0]
    assert any(line.startswith(f"{first} ") and "= floor" in line for line in lines)


def test_engines_by_label_and_by_server(opened: Path):
    everything = analyzed("--store", opened)
    assert everything["window"]["engines"] == ["a:1/0", "b:2/0", "b:2/1"]
    assert everything["requests"]["finished"] == 60 + 60 + 120
    assert analyzed("--store", opened, "--engine", "1")["window"]["engines"] == ["b:2/1"]
    two = analyzed("--store", opened, "--engine", "a:1/0", "--engine", "b:2/1")
    assert two["window"]["engines"] == ["a:1/0", "b:2/1"]
    assert two["requests"]["finished"] == 60 + 120
    result = weaklink("analyze", "--store", opened, "--engine", "7")
    assert result.exit_code == 2
    assert f"nothing usable in {opened} of engine 7" in result.stderr


def test_a_window_by_iso_and_by_seconds(opened: Path):
    assert analyzed("--store", opened)["window"]["start"] == "2026-11-29T12:00:00.000Z"
    spellings = [
        ("2026-11-29T12:00:20Z", "2026-11-29T12:00:50Z"),
        ("2026-11-29T12:00:20", "2026-11-29 12:00:50"),
        ("2026-11-29T13:00:20+01:00", "2026-11-29T12:00:50+00:00"),
        (f"{NOON + 20:.0f}", f"{NOON + 50}"),
    ]
    for low, high in spellings:
        found = analyzed("--store", opened, "--engine", "a:1/0", "--from", low, "--to", high)
        assert found["requests"]["finished"] == 30
        assert (found["window"]["start"], found["window"]["end"]) == ("2026-11-29T12:00:20.000Z", "2026-11-29T12:00:50.000Z")


def test_a_window_in_which_nothing_was_recorded(opened: Path):
    result = weaklink("analyze", "--store", opened, "--from", "2030-01-01", "--to", "2030-01-02")
    assert result.exit_code == 2
    assert f"nothing usable in {opened} from 2030-01-01 to 2030-01-02: expected" in result.stderr
    assert analyzed("--store", opened, "--to", "2020-01-01", status=2)["targets"]["e2e"]["verdict"] == "undetermined"


# -- the store ---------------------------------------------------------------------------------------------------------


def test_load_status_analyze(home: Path):
    first = json.loads(weaklink("load", INCIDENTS / "slots", "--format", "json").stdout)
    assert {file["name"]: file["added"] for file in first if file["format"]} == dict.fromkeys(
        ("client.jsonl.gz", "command.json", "metrics.jsonl.gz", "server.log.gz", "spans.jsonl.gz"), True
    )
    assert {file["bundle"] for file in first} == {"slots"}
    again = json.loads(weaklink("load", INCIDENTS / "slots", "--format", "json").stdout)
    assert not any(file["added"] for file in again)
    status = json.loads(weaklink("status", "--format", "json").stdout)
    assert status["store"] == str(home / "weaklink" / "weaklink.duckdb")
    assert status["bytes"] > 0
    assert status["rows"]["source_file"] == 5
    assert status["recordings"] == [
        {
            "bundle": "slots",
            "instances": ["127.0.0.1:35623"],
            "start": status["recordings"][0]["start"],
            "end": "2026-11-29T15:54:34.548Z",
        },
    ]
    text_status = weaklink("status").stdout
    assert "slots  127.0.0.1:35623" in text_status
    stored, direct = analyzed(), analyzed(INCIDENTS / "slots")
    assert {file["name"] for file in stored["source"]["files"]} == {f"slots/{file['name']}" for file in first if file["format"]}
    assert {**stored, "source": None} == {**direct, "source": None}


def test_status_of_nothing(tmp_path: Path):
    result = weaklink("status", "--store", tmp_path / "new.duckdb")
    assert result.exit_code == 0
    assert "Nothing is loaded yet: weaklink load PATH, or weaklink demo to see an incident." in result.stdout
    assert json.loads(weaklink("status", "--store", tmp_path / "new.duckdb", "--format", "json").stdout)["recordings"] == []


def test_status_of_a_recording_without_a_clock(tmp_path: Path):
    (tmp_path / "m.txt").write_text(text({TOKENS: 1}))
    store = tmp_path / "x.duckdb"
    assert weaklink("load", tmp_path / "m.txt", "--store", store).exit_code == 0
    assert re.search(r"^no clock +m\.txt  m\.txt$", weaklink("status", "--store", store).stdout, re.MULTILINE)


def test_load_says_what_became_of_each_file(tmp_path: Path):
    folder = tmp_path / "x"
    scrapes(folder / "m.jsonl", [(0, {TOKENS: 1})])
    (folder / "bad.jsonl").write_text(scrape(1, {TOKENS: 1}) + "{nonsense\n")
    (folder / "notes.md").write_text("# Notes\n")
    lines = weaklink("load", folder, "--store", tmp_path / "x.duckdb").stdout.splitlines()
    assert lines == [
        "prometheus_text         2 lines     1 rejected  x/bad.jsonl",
        f'{"":17}line 2: expected: a JSON object {{"t": epoch seconds, "url", "text"}}',
        "prometheus_text         1 lines     0 rejected  x/m.jsonl",
        "-                       0 lines     0 rejected  x/notes.md",
        f"{'':17}not recognised; expected one of the formats that `weaklink formats` lists",
    ]
    result = weaklink("load", folder / "notes.md", "--store", tmp_path / "x.duckdb")
    assert result.exit_code == 2
    assert "no file was recognised; `weaklink formats` lists what can be read" in result.stderr


def test_paths_and_a_store_together_are_loaded_and_judged(tmp_path: Path):
    store = tmp_path / "x.duckdb"
    document = analyzed(requests(tmp_path / "m.jsonl"), "--store", store)
    assert document["requests"]["finished"] == 100
    assert analyzed("--store", store)["requests"]["finished"] == 100


def test_every_verb_that_answers_has_json(tmp_path: Path):
    path = requests(tmp_path / "m.jsonl")
    store = ("--store", tmp_path / "x.duckdb")
    for arguments in (("load", path, *store), ("status", *store), ("analyze", *store), ("formats",), ("compare", path, path)):
        result = weaklink(*arguments, "--format", "json")
        assert result.exit_code == 0, result.stderr
        json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        plain = weaklink(*arguments)
        assert plain.exit_code == 0
        assert plain.stdout.strip()


def test_formats_are_listed():
    found = {row["format"]: row["what"] for row in json.loads(weaklink("formats", "--format", "json").stdout)}
    server = {"prometheus_text", "vllm_log", "otlp_spans", "request_lines", "kv_events", "vllm_command"}
    assert set(found) == server | {"bench_result", "bench_text", "guidellm", "aiperf", "aiperf_server", "rows"}
    assert all(found.values())
    assert all(name in weaklink("formats").stdout for name in found)


# -- what a run leaves behind ------------------------------------------------------------------------------------------


def test_analyze_with_paths_writes_no_file(tmp_path: Path):
    places = {name: tmp_path / name for name in ("cwd", "home_of_user", "data", "tmp")}
    for place in places.values():
        place.mkdir()
    bundles = tmp_path / "bundles"
    shutil.copytree(INCIDENTS / "slots", bundles / "slots")
    with zipfile.ZipFile(bundles / "slots.zip", "w") as archive:
        archive.write(INCIDENTS / "slots" / "metrics.jsonl.gz", "metrics.jsonl.gz")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for bundle in ("slots", "slots.zip"):
        done = run(
            "analyze",
            str(bundles / bundle),
            cwd=places["cwd"],
            HOME=str(places["home_of_user"]),
            XDG_DATA_HOME=str(places["data"]),
            TMPDIR=str(places["tmp"]),
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Slots limits TTFT: ")
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert after.keys() == before.keys()
    assert [path for path in after if path.is_file() and after[path] != before[path]] == []


HEAVY: Final = ("pandas", "streamlit", "plotly", "uvicorn", "starlette", "requests", "prometheus_api_client")
IMPORTED: Final = f"""
import sys
from app.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_analyze_imports_nothing_of_the_dashboard(form: str):
    command = [sys.executable, "-c", IMPORTED, "analyze", str(INCIDENTS / "healthy"), "--format", form]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_the_help_names_every_verb():
    verbs = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert {"analyze", "load", "status", "formats", "serve", "demo"} <= verbs
    shown = weaklink("--help").stdout
    assert all(re.search(rf"^  {verb} ", shown, re.MULTILINE) for verb in verbs)
