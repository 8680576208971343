"""Prometheus text: the same numbers as prometheus_client, over bytes of any kind, and what it leaves out."""

import io
import json
import math
from typing import Any

import pytest
from collectors.formats.reading import (
    HEAD,
    Rows,
    check_cut,
    check_manifest,
    data,
    is_prefix,
    patient,
    read,
    sample,
    samples,
    scrambled,
    whole,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from app.collectors.formats import prometheus_text

Key = tuple[str, tuple[tuple[str, str], ...]]
EXPECTED = prometheus_text.EXPECTED


def named(rows: Rows) -> dict[int, Key]:
    """Return name and all labels of each series."""
    found = {}
    for row in rows.get("series", []):
        labels = json.loads(row["labels"]) | {k: row[k] for k in ("engine", "model_name") if row[k] is not None}
        found[row["series"]] = row["name"], tuple(sorted(labels.items()))
    return found


def numbers(rows: Rows) -> list[tuple[Key, float, float]]:
    names = named(rows)
    return [(names[row["series"]], row["ts"], row["value"]) for row in rows.get("sample", [])]


def reference(families: Any) -> list[tuple[Key, float, float]]:
    """Return what prometheus_client reads, as far as it is ours."""
    return [
        ((one.name, tuple(sorted(one.labels.items()))), float(one.timestamp or 0.0), float(one.value))
        for family in families
        for one in family.samples
        if one.name.startswith(prometheus_text.KEPT) and not one.name.endswith("_created") and math.isfinite(one.value)
    ]


# -- whole files ------------------------------------------------------------------------------------------------------


def test_nothing():
    assert read(prometheus_text, b"") == {"source_file": [whole(0)]}
    assert read(prometheus_text, b"\n \r\n\n") == {"source_file": [whole(3)]}
    assert not prometheus_text.sniff(b"")


def test_the_manifest_names_each_sample():
    check_manifest(prometheus_text)


@pytest.mark.parametrize("file", samples(prometheus_text, "good"), ids=lambda file: file.name)
def test_good_samples_are_ours_and_whole(file):
    assert prometheus_text.sniff(file.read_bytes()[:HEAD])
    assert read(prometheus_text, file.read_bytes())["source_file"][0]["rejected"] == 0


@pytest.mark.parametrize("name", ["vllm-0.8.5-v0.txt", "vllm-0.20.txt", "vllm-0.32-crlf.txt", "ray-serve.txt", "federated.txt"])
def test_real_texts_read_as_prometheus_client_reads_them(name):
    text = sample(prometheus_text, f"good/{name}")
    assert numbers(read(prometheus_text, text)) == reference(prometheus(text.decode()))


def test_openmetrics_reads_as_prometheus_client_reads_it():
    text = sample(prometheus_text, "good/openmetrics.txt")
    rows = read(prometheus_text, text)
    assert numbers(rows) == reference(openmetrics(text.decode()))
    assert rows["scrape"] == [
        {"instance": None, "ts": ts, "duration_s": None, "ok": True, "timed": True} for ts in (1795968010.5, 1795968011.0)
    ]


def test_ray_names_labels_and_dropped_series():
    labels = '{"Component": "core_worker", "NodeAddress": "10.0.0.1", "ReplicaId": "r1"}'
    series = [("ray_vllm_num_requests_running", labels), ("ray_vllm_prompt_tokens_total", '{"ReplicaId": "r1"}')]
    assert read(prometheus_text, sample(prometheus_text, "good/ray-serve.txt")) == {
        "scrape": [{"instance": None, "ts": 0.0, "duration_s": None, "ok": True, "timed": False}],
        "series": [
            {"series": at, "instance": None, "name": name, "engine": "0", "model_name": "m", "labels": text}
            for at, (name, text) in enumerate(series)
        ],
        "sample": [{"series": 0, "ts": 0.0, "value": 2.0}, {"series": 1, "ts": 0.0, "value": 4096.0}],
        "source_file": [whole(7)],
    }


def test_a_series_that_comes_again_begins_another_scrape():
    rows = read(prometheus_text, sample(prometheus_text, "good/vllm-0.24-twice.txt"))
    assert [(row["ts"], row["ok"], row["timed"]) for row in rows["scrape"]] == [(0.0, True, False), (1.0, True, False)]
    prompts = next(number for number, (name, _) in named(rows).items() if name == "vllm:prompt_tokens_total")
    assert [(row["ts"], row["value"]) for row in rows["sample"] if row["series"] == prompts] == [(0.0, 0.0), (1.0, 218955.0)]


def test_a_dropped_series_that_comes_again_begins_another_scrape():
    rows = read(prometheus_text, b"python_info 1\nvllm:a 1\npython_info 1\nvllm:a 2\npython_info 1\n")
    assert [(row["ts"], row["value"]) for row in rows["sample"]] == [(0.0, 1.0), (1.0, 2.0)]
    assert [row["ts"] for row in rows["scrape"]] == [0.0, 1.0, 2.0]


def test_a_recorded_scrape_and_its_samples_are_at_its_end():
    """A server is not known by its name alone; a failed attempt has a row and no samples."""
    text = sample(prometheus_text, "good/vllm-0.33-two-servers.jsonl")
    rows = read(prometheus_text, text)
    lines = [json.loads(line) for line in text.splitlines()]
    hosts = [line["url"].split("/")[2] for line in lines]
    assert rows["scrape"] == [
        {"instance": host, "ts": line["t"] + line["dur"], "duration_s": line["dur"], "ok": "text" in line, "timed": True}
        for line, host in zip(lines, hosts, strict=True)
    ]
    expected = []
    for line, host in zip(lines, hosts, strict=True):
        found = reference(prometheus(line.get("text", "")))
        expected += [(host, key, line["t"] + line["dur"], value) for key, _, value in found]
    instance = {row["series"]: row["instance"] for row in rows["series"]}
    assert [(instance[row["series"]], named(rows)[row["series"]], row["ts"], row["value"]) for row in rows["sample"]] == expected
    assert rows["source_file"] == [whole(4)]


def test_engines_of_one_server_are_series_of_their_own():
    rows = read(prometheus_text, sample(prometheus_text, "good/vllm-0.33-two-engines.jsonl"))
    found = {row["engine"]: row for row in rows["series"] if row["name"] == "vllm:prompt_tokens_total"}
    values = {engine: [s["value"] for s in rows["sample"] if s["series"] == row["series"]] for engine, row in found.items()}
    assert values == {"0": [1007912.0, 1997147.0], "1": [981373.0, 1981423.0]}
    assert {row["instance"] for row in rows["series"]} == {"127.0.0.1:50395"}
    assert rows["source_file"] == [whole(2, instance="127.0.0.1:50395")]


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_malformed_lines_are_named_and_the_rest_is_read():
    rows = read(prometheus_text, sample(prometheus_text, "bad/malformed.txt"))
    assert numbers(rows) == [
        (("vllm:num_requests_running", (("engine", "0"), ("model_name", "m"))), 0.0, 2.0),
        (("vllm:kv_cache_usage_perc", (("engine", "0"), ("model_name", "m"))), 0.0, 0.25),
    ]
    assert rows["rejected_line"] == [{"line": line, "reason": EXPECTED} for line in (1, 4, 5, 6, 7, 8, 9)]
    assert rows["source_file"] == [whole(11, rejected=7)]


def test_the_last_line_without_an_end_may_lack_digits():
    rows = read(prometheus_text, sample(prometheus_text, "bad/cut.txt"))
    assert [row["value"] for row in rows["sample"]] == [4096.0]
    assert rows["rejected_line"] == [{"line": 3, "reason": "expected: more bytes, the file is cut"}]


def test_a_recorders_bad_lines():
    rows = read(prometheus_text, sample(prometheus_text, "bad/recorder.jsonl"))
    assert data(rows) == {
        "series": [
            {"series": 0, "instance": "10.0.0.1:8000", "name": "vllm:num_requests_running", "engine": "0"}
            | {"model_name": None, "labels": "{}"}
        ],
        "scrape": [
            {"instance": "10.0.0.1:8000", "ts": 1795968010.75, "duration_s": 0.25, "ok": True, "timed": True},
            {"instance": "10.0.0.1:8000", "ts": 1795968013.0, "duration_s": 0.5, "ok": False, "timed": True},
        ],
        "sample": [{"series": 0, "ts": 1795968010.75, "value": 1.0}],
    }
    assert [(row["line"], row["reason"]) for row in rows["rejected_line"]] == [
        (1, f"text line 2: {EXPECTED}, and 1 more"),
        (2, 'expected: a JSON object {"t": epoch seconds, "url", "text"}'),
        (3, f"text line 1: {EXPECTED}"),
        (4, 'expected: "text" or "error"'),
        (5, 'expected: a JSON object {"t": epoch seconds, "url", "text"}'),
    ]


INSTANCES = {
    "http://[::1]:8000/metrics": "[::1]:8000",
    "http://user:pw@Host:8000/x": "host:8000",
    "https://h/metrics": "h:443",
    "http://h": "h:80",
    "http://h:port/": None,
    "x": None,
}


@pytest.mark.parametrize(("url", "instance"), [*INSTANCES.items(), (3, None)])
def test_an_instance_is_host_and_port_of_the_url(url, instance):
    text = json.dumps({"t": 5, "url": url, "text": "vllm:a 1"}).encode()
    assert read(prometheus_text, text)["scrape"][0]["instance"] == instance


def test_a_line_longer_than_the_limit_is_rejected(monkeypatch):
    monkeypatch.setattr(prometheus_text, "MAX_LINE", 3 << 20)
    long = b'vllm:a{x="' + b"y" * (5 << 20) + b'"} 1\n'
    rows = read(prometheus_text, b"vllm:b 1\n" + long + b"vllm:c 1\n" + b"vllm:d 1\n" * 2)
    assert [name for name, _ in named(rows).values()] == ["vllm:b", "vllm:c", "vllm:d"]
    assert rows["rejected_line"] == [{"line": 2, "reason": f"expected: a line of at most {3 << 20} bytes"}]
    assert rows["source_file"] == [whole(5, rejected=1)]


def test_batches_are_bounded_and_series_come_first(monkeypatch):
    monkeypatch.setattr(prometheus_text, "ROWS", 10)
    text = b"".join(b'vllm:a{i="%d"} %d\n' % (at, at) for at in range(25))
    for raw in (text, json.dumps({"t": 5, "url": "http://h:1", "text": text.decode()}).encode() + b"\n"):
        batches = list(prometheus_text.read(io.BytesIO(raw * 2), 0.0))
        assert max(len(batch.columns["ts"]) for batch in batches if batch.table == "sample") <= 10
        assert sum(len(batch.columns["ts"]) for batch in batches if batch.table == "sample") == 50


# -- over everything --------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["vllm:a_total", "vllm:b_bucket", "vllm_c", "ray_vllm_d", "http_e", "process_f", "go_g", "vllm:h_created"],
)
LABELS = st.dictionaries(
    st.sampled_from(["engine", "model_name", "le", "reason", "_x1"]),
    st.lists(st.sampled_from(list(' \\"\n{}=,#naé\U0001f600\u2028'))).map("".join) | st.text(),
)
VALUES = st.one_of(
    st.floats().map(repr),
    st.integers().map(str),
    st.sampled_from(["NaN", "+Inf", "-Inf", "1e5", "4.2E-3", "Inf"]),
)
STAMPS = st.none() | st.integers(10**11, 10**13)
COMMENTS = st.sampled_from(["# HELP vllm:x some text 1", "# TYPE vllm:x gauge", "# a comment", "#", "", "  "])


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@st.composite
def exposition(draw) -> str:
    """Return a text in which each series comes once."""
    lines, seen = [], set()
    for _ in range(draw(st.integers(0, 8))):
        name, labels = draw(NAMES), draw(LABELS)
        if draw(st.booleans()):
            lines.append(draw(COMMENTS))
        if (name, tuple(sorted(labels.items()))) in seen:
            continue
        seen.add((name, tuple(sorted(labels.items()))))
        comma = draw(st.sampled_from([",", ", "]))
        inner = comma.join(f'{key}="{escaped(value)}"' for key, value in labels.items())
        text = f"{name}{{{inner}{draw(st.sampled_from(['', ',']))}}}" if labels else draw(st.sampled_from([name, f"{name}{{}}"]))
        text += draw(st.sampled_from([" ", "  "])) if labels else " "
        stamp = draw(STAMPS)
        text += draw(VALUES) + ("" if stamp is None else f" {stamp}") + draw(st.sampled_from(["", "\r", " "]))
        lines.append(text)
    return "".join(f"{line}\n" for line in lines)


@given(exposition(), st.booleans())
@example('vllm_c{reason="\\\\n"} 1\n', False)
@example("vllm_c 5\nvllm_c{} 6\n", True)
@settings(patient, max_examples=300)
def test_any_exposition_reads_as_prometheus_client_reads_it(text, recorded):
    expected = reference(prometheus(text))
    if not recorded:
        rows = read(prometheus_text, text.encode())
        if text != "vllm_c 5\nvllm_c{} 6\n":  # one series in two spellings: no new scrape for a spelling that is new
            assert numbers(rows) == expected
    else:
        line = json.dumps({"t": 0, "url": "http://h:1", "text": text})
        rows = read(prometheus_text, line.encode())
        assert numbers(rows) == expected
    assert rows["source_file"][0]["rejected"] == 0


@given(st.binary() | st.text().map(str.encode))
@example(b"\xff\xfe{\x00")
@example(b'{"t": 1, "url": "", "text": "\\ud800 1"}')
@example(b'vllm:a{x="\xff\xc3"} 1\n')
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b"vllm:a " + b"9" * 5000 + b"\nvllm:a 1 " + b"9" * 400 + b"\nvllm:a 1 -5\n")
@patient
def test_any_bytes(text):
    read(prometheus_text, text)
    prometheus_text.sniff(text)


PIECES = ["vllm:a", "{", "}", 'engine="0"', ",", "=", '"', "\\", " ", "1", "NaN", "#", "\n", "\t", "x", "\r", "1_0"]


@given(st.lists(st.sampled_from(PIECES)))
@patient
def test_any_text_like_ours(parts):
    text = "".join(parts)
    read(prometheus_text, text.encode())
    read(prometheus_text, json.dumps({"t": 1, "url": "http://h", "text": text}).encode())


@given(scrambled(prometheus_text))
@patient
def test_any_types(text):
    read(prometheus_text, text)


@given(st.sampled_from(samples(prometheus_text)), st.data())
@patient
def test_a_cut_file(file, draw):
    text = file.read_bytes()
    at = draw.draw(st.integers(0, len(text)))
    if file.suffix == ".jsonl" or not read(prometheus_text, text)["scrape"][0]["timed"]:
        check_cut(prometheus_text, text, at)
    else:  # the scrapes of a text with times are the times that occur, in order: no prefix
        part, full = (data(read(prometheus_text, raw)) for raw in (text[:at], text))
        times = [[row["ts"] for row in rows.pop("scrape", [])] for rows in (part, full)]
        assert set(times[0]) <= set(times[1])
        assert is_prefix(part, full)
