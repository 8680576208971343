"""Routers in front of engines: what they say is told beside an attribution, and they are never taken for an engine."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from recordings import ROOT, finished, scrape, series, stats

from app import routers
from app.ingest import load
from app.pipeline import attribution_for
from app.store import Store

GOOD: Final = ROOT / "sample_data" / "formats" / "prometheus_text" / "good"


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as opened:
        yield opened


def values(name: str, factor: float) -> dict[str, float]:
    """Return a router's sample, its numbers times `factor`."""
    found = re.findall(r"^([a-z][^#\n]*) (\S+)$", (GOOD / f"router-{name}.txt").read_text(), re.MULTILINE)
    return {key: float(value) * factor for key, value in found}


def recording(folder: Path, name: str, *, router: str = "http://router:80/metrics", log: bool = False) -> Path:
    """Write a bundle of two scrapes of an engine with 100 requests (TTFT 1.2 s) and of a router before it."""
    folder.mkdir()
    engine = [
        {**finished(n, ttft=1.2, queue=0.2, prefill=0.9, decode=1.0, e2e=2.3), series("num_requests_running"): 2}
        for n in (0, 100)
    ]
    (folder / "engine.jsonl").write_text(scrape(0, engine[0]) + scrape(10, engine[1]))
    (folder / "router.jsonl").write_text(scrape(1, values(name, 0), router) + scrape(9, values(name, 1), router))
    if log:
        (folder / "server.log").write_text(stats())
    return folder


def test_no_router_no_note(store: Store):
    assert routers.notes(store, None, None) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "production-stack",
            [
                "prefix hits by engine: http://10.0.0.1:8000 70 %, http://10.0.0.2:8000 10 %",
                "requests by engine: http://10.0.0.1:8000 80 %, http://10.0.0.2:8000 20 %",
            ],
        ),
        (
            "llm-d",
            [
                (
                    "requests waited 0.85 s in it before an engine (mean of 100), which no stage here contains; "
                    "up to 14 requests queued in it at once"
                ),
                "62 % of a prompt was expected in the chosen engine's cache (mean)",
            ],
        ),
        (
            "dynamo",
            [
                "up to 5 requests queued in it at once",  # not the 30 that include the prefill
                "it sees a TTFT of 1.9 s, the engines one of 1.2 s: 0.7 s pass before and after them",
                "40 % of a prompt was expected in the chosen engine's cache (mean)",
            ],
        ),
    ],
)
def test_what_a_router_says_stands_beside_the_attribution(name: str, said: list[str], store: Store, tmp_path: Path):
    load(store, [recording(tmp_path / "x", name)])
    found = attribution_for(store)
    label = {"production-stack": "production-stack", "llm-d": "llm-d", "dynamo": "Dynamo"}[name]
    assert [note for note in found.notes if note.startswith("router ")] == [
        f"router router:80 ({label}): {text}" for text in said
    ]
    assert [engine.instance for engine in found.engines] == ["127.0.0.1:8000"]
    assert found.targets["ttft"].measured_s == pytest.approx(1.2)


def test_another_window_has_none(store: Store, tmp_path: Path):
    load(store, [recording(tmp_path / "x", "llm-d")])
    assert routers.notes(store, 0.0, 100.0) == []


def test_newer_names_of_the_same_families_count_once(store: Store, tmp_path: Path):
    both = values("llm-d", 1)
    both |= {key.replace("inference_extension_", "llm_d_epp_"): value for key, value in both.items()}
    none = dict.fromkeys(both, 0.0)
    router = "http://router:80/metrics"
    (tmp_path / "m.jsonl").write_text(scrape(1, none, router) + scrape(9, both, router))
    load(store, [tmp_path / "m.jsonl"])
    assert routers.notes(store, None, None)[0].startswith(
        "router router:80 (llm-d): requests waited 0.85 s in it before an engine (mean of 100)"
    )


def test_counts_that_differ_are_not_compared(store: Store, tmp_path: Path):
    """A router that sent half of its requests to engines that were not scraped."""
    folder = recording(tmp_path / "x", "dynamo")
    more = {key: value * 2 for key, value in values("dynamo", 1).items()}
    router = "http://router:80/metrics"
    (folder / "router.jsonl").write_text(scrape(1, dict.fromkeys(more, 0.0), router) + scrape(9, more, router))
    load(store, [folder])
    assert not [note for note in routers.notes(store, None, None) if "TTFT" in note]


def test_a_router_beside_an_engine_leaves_the_log_to_the_engine(store: Store, tmp_path: Path):
    load(store, [recording(tmp_path / "x", "production-stack", log=True)])
    assert store.rows("SELECT instance FROM source_file WHERE name = 'server.log'") == [("127.0.0.1:8000",)]


def test_a_restarted_router_counts_from_zero(store: Store, tmp_path: Path):
    router = "http://router:80/metrics"
    lines = [scrape(at, values("llm-d", factor), router) for at, factor in ((1, 1), (5, 1.5), (9, 0.5))]
    (tmp_path / "m.jsonl").write_text("".join(lines))
    load(store, [tmp_path / "m.jsonl"])
    assert "(mean of 100)" in routers.notes(store, None, None)[0]  # 50 before the restart, 50 after it


@pytest.mark.parametrize("verb", ["analyze", "doctor"])
def test_a_router_alone_asks_for_the_metrics_of_its_engines(verb):
    command = [sys.executable, "-m", "app", verb, str(GOOD / "router-production-stack.txt")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "only a router was found (production-stack), which sends to http://10.0.0.1:8000, http://10.0.0.2:8000" in done.stderr
    assert "give the engines' /metrics" in done.stderr
