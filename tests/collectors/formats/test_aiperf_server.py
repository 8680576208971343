"""AIPerf's record of the server's metrics: scrapes and sums become what a scraper would have stored."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from collectors.formats.reading import HEAD, check_cut, check_manifest, patient, read, refuses, sample, samples, scrambled, whole
from hypothesis import example, given
from hypothesis import strategies as st

from app.collectors.formats import aiperf_server
from app.ingest import load
from app.pipeline import attribution_for
from app.store import Store

START = 1795968010.0
OWN = "gpu-1:8000"


def points(rows: dict) -> dict[str, list[tuple[float, float]]]:
    """Return the samples of each series: name{labels} -> (seconds since START, value)."""
    names = {row["series"]: row for row in rows["series"]}
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows["sample"]:
        one = names[row["series"]]
        labels = json.loads(one["labels"])
        assert one["instance"] == OWN
        name = one["name"] + (f"{{{','.join(f'{key}={value}' for key, value in labels.items())}}}" if labels else "")
        found.setdefault(name, []).append((round(row["ts"] - START, 3), row["value"]))
    return found


def test_nothing():
    assert read(aiperf_server, b"") == {"source_file": [whole(0)]}
    assert not aiperf_server.sniff(b"")


def test_the_manifest_names_each_sample():
    check_manifest(aiperf_server)


def test_the_lines_are_scrapes():
    text = sample(aiperf_server, "good/aiperf-0.13.jsonl")
    assert aiperf_server.sniff(text[:HEAD])
    rows = read(aiperf_server, text)
    assert rows["source_file"] == [whole(2, instance=OWN)]
    assert [(row["ts"], row["duration_s"], row["ok"], row["timed"]) for row in rows["scrape"]] == [
        (START, 0.004, True, True),
        (START + 0.333, 0.005, True, True),
    ]
    assert points(rows) == {
        "vllm:num_requests_running": [(0, 3), (0.333, 4)],
        "vllm:generation_tokens_total": [(0, 1000), (0.333, 1100)],
        "vllm:time_to_first_token_seconds_sum": [(0, 2.5), (0.333, 3.5)],
        "vllm:time_to_first_token_seconds_count": [(0, 10), (0.333, 12)],
        "vllm:time_to_first_token_seconds_bucket{le=0.1}": [(0, 9), (0.333, 11)],
        "vllm:time_to_first_token_seconds_bucket{le=+Inf}": [(0, 10), (0.333, 12)],
        "vllm:iteration_tokens_total_sum": [(0, 1000), (0.333, 1200)],
        "vllm:iteration_tokens_total_count": [(0, 100), (0.333, 120)],
        "vllm:iteration_tokens_total_bucket{le=1.0}": [(0, 0), (0.333, 0)],
        "vllm:iteration_tokens_total_bucket{le=+Inf}": [(0, 100), (0.333, 120)],
        "process_cpu_seconds_total": [(0, 10), (0.333, 11)],
        "process_start_time_seconds": [(0, 1795960000), (0.333, 1795960000)],
    }
    assert {(row["engine"], row["model_name"]) for row in rows["series"] if row["name"].startswith("vllm")} == {("0", "m")}


def test_the_document_is_the_phase_from_zero_to_its_sums():
    text = sample(aiperf_server, "good/aiperf-0.13.json")
    assert aiperf_server.sniff(text[:HEAD])
    rows = read(aiperf_server, text)
    assert [(row["ts"], row["timed"]) for row in rows["scrape"]] == [(START, True), (START + 60, True)]
    assert points(rows) == {
        "vllm:num_requests_running": [(0, 3.5), (60, 3.5)],
        "vllm:generation_tokens_total": [(0, 0), (60, 6000)],  # without the 999 of the warm-up
        "vllm:num_preemptions_total": [(0, 0), (60, 0)],
        "vllm:time_to_first_token_seconds_sum": [(0, 0), (60, 25)],
        "vllm:time_to_first_token_seconds_count": [(0, 0), (60, 100)],
        "vllm:time_to_first_token_seconds_bucket{le=0.1}": [(0, 0), (60, 40)],
        "vllm:time_to_first_token_seconds_bucket{le=+Inf}": [(0, 0), (60, 100)],
        "process_cpu_seconds_total": [(0, 0), (60, 12.5)],
    }


def test_slices_are_scrapes_between():
    rows = read(aiperf_server, sample(aiperf_server, "good/sliced.json"))
    found = points(rows)
    assert [round(row["ts"] - START, 3) for row in rows["scrape"]] == [-4, 30, 60]  # from the first change that was seen
    assert found["vllm:generation_tokens_total"] == [(-4, 0), (30, 1000), (60, 6000)]
    assert found["vllm:num_requests_running"] == [(-4, 3), (30, 2), (60, 4)]
    assert found["vllm:time_to_first_token_seconds_bucket{le=0.1}"] == [(-4, 0), (30, 10), (60, 40)]


def test_what_is_no_record_is_named_and_the_rest_is_read():
    rows = read(aiperf_server, sample(aiperf_server, "bad/types-and-cut.jsonl"))
    assert points(rows) == {
        "vllm:generation_tokens_total": [(0, 5)],
        "vllm:time_to_first_token_seconds_count": [(0, 2)],
    }
    assert [(row["line"], row["reason"]) for row in rows["rejected_line"]] == [
        (2, aiperf_server.EXPECTED_LINE),
        (3, aiperf_server.EXPECTED_LINE),
        (4, "expected: JSON"),
    ]
    rows = read(aiperf_server, sample(aiperf_server, "bad/no-times.json"))
    assert [(row["line"], row["reason"]) for row in rows["rejected_line"]] == [(1, aiperf_server.EXPECTED)]


def test_both_give_the_means_of_the_scrapes_they_were_made_of(tmp_path: Path):
    """Sums over the phase: 100 first tokens in 25 s."""
    (tmp_path / "server_metrics_export.json").write_bytes(sample(aiperf_server, "good/aiperf-0.13.json"))
    with Store() as store:
        load(store, [tmp_path])
        ((instance, dt_s, ttft_s, ttft_n, tokens, running),) = store.rows(
            "SELECT instance, dt_s, ttft_s, ttft_n, generation_tokens, running FROM interval_row"
        )
        attribution_for(store)
    assert (instance, dt_s, ttft_s, ttft_n, tokens, running) == (OWN, 60, 25, 100, 6000, 3.5)


def means(store: Store) -> tuple[float, ...]:
    return store.rows(
        "SELECT sum(ttft_n), sum(ttft_s) / sum(ttft_n), sum(generation_tokens), sum(restarted::INT) FROM interval_row"
    )[0]


def test_a_recorded_run_says_the_same_by_its_scrapes_and_by_its_sums(tmp_path: Path):
    """60 requests of a real server. The sums are of the measured phase: its last tokens were counted after it."""
    found = {}
    for suffix in ("jsonl", "json"):
        folder = tmp_path / suffix
        folder.mkdir()
        (folder / f"server_metrics_export.{suffix}").write_bytes(sample(aiperf_server, f"good/recorded-0.13.{suffix}"))
        with Store() as store:
            (result,) = load(store, [folder])
            found[suffix] = means(store)
        assert (result.format, result.rejected, result.message) == ("aiperf_server", 0, "")
    assert found["jsonl"] == (60, pytest.approx(1.879, abs=0.001), 1920, 0)
    assert found["json"] == (60, pytest.approx(1.879, abs=0.001), pytest.approx(1920, rel=0.05), 0)


@pytest.mark.parametrize("order", [("json", "jsonl"), ("jsonl", "json")])
def test_both_exports_of_a_run_count_once(order: tuple[str, str], tmp_path: Path):
    for at, suffix in enumerate(order):
        (tmp_path / f"{at}.{suffix}").write_bytes(sample(aiperf_server, f"good/recorded-0.13.{suffix}"))
    with Store() as store:
        results = {Path(one.name).suffix: one for one in load(store, [tmp_path])}
        assert means(store) == (60, pytest.approx(1.879, abs=0.001), 1920, 0)
    assert results[".jsonl"].added
    assert not results[".json"].added
    assert results[".json"].message == "holds sums; scrapes of the same server at the same time are there: not used"


def test_other_files_are_refused():
    assert refuses(aiperf_server) == []


@given(st.binary() | st.text().map(str.encode))
@example(b'{"endpoint_url": "http://[", "timestamp_ns": 1e300, "metrics": {"vllm:a": [{"value": 1e308}]}}')
@example(b'{"schema_version": "1", "summary": {"endpoints_configured": [], "start_time": "9999-12-31T23:59:59", "end_time": 1}}')
@patient
def test_any_bytes(text):
    read(aiperf_server, text)
    aiperf_server.sniff(text)


@given(scrambled(aiperf_server))
@patient
def test_any_types(text):
    read(aiperf_server, text)
    aiperf_server.sniff(text)


def lines_only() -> Iterator[Path]:
    return (file for file in samples(aiperf_server) if file.suffix == ".jsonl")


@pytest.mark.parametrize("file", lines_only(), ids=lambda file: file.name)
@given(draw=st.data())
@patient
def test_a_cut_file(file, draw):
    text = file.read_bytes()
    check_cut(aiperf_server, text, draw.draw(st.integers(0, len(text))))
