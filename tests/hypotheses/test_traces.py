"""Public traces: described as their publishers' numbers say, and their prefix hits over several engines as a direct simulation has them."""

import functools
import gzip
import json
import tomllib
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from analyzers.hypotheses import replicas
from analyzers.hypotheses.caches import replayed
from analyzers.workload import workload
from app.experiments import traces

HERE: Final = Path(__file__).resolve().parent / "traces"
MANIFEST: Final = {entry["name"]: entry for entry in tomllib.loads((HERE / "manifest.toml").read_text())["file"]}
HASHED: Final = [name for name, entry in MANIFEST.items() if "hit_ratio" in entry]
POOL: Final = 3000  # blocks of one engine: a fraction of what the traces share


@functools.cache
def trace(name: str) -> traces.Trace:
    rows = [json.loads(line) for line in gzip.decompress((HERE / name).read_bytes()).decode().splitlines()]
    columns = [np.array([row[k] for row in rows], float) for k in range(3)]
    blocks = tuple([i for first, n in row[3] for i in range(first, first + n)] for row in rows) if len(rows[0]) > 3 else None
    return traces.Trace(columns[0], columns[1], columns[2], blocks)


def direct(requests: Any, capacity: int | None, engines: int, *, routed: bool, seed: int = 0) -> list[int]:
    """Blocks that hit of each request, by stamps of last use and a search for the oldest: slow, plain, another way than the program's."""
    stamps: list[dict[int, int]] = [{} for _ in range(engines)]
    computed, clock, out = [0] * engines, 0, []
    drawn = np.random.default_rng(seed).integers(0, engines, len(requests))
    for turn, blocks in enumerate(requests):
        hits = []
        for held in stamps:
            n = 0
            while n < len(blocks) and blocks[n] in held:
                n += 1
            hits.append(n)
        chosen = int(drawn[turn])
        if routed:
            chosen = min(range(engines), key=lambda e: (-hits[e], computed[e], e))
        out.append(hits[chosen])
        computed[chosen] += len(blocks) - hits[chosen]
        for block in reversed(blocks):
            clock += 1
            stamps[chosen][block] = clock
        if capacity is not None and len(stamps[chosen]) > capacity:
            keep = sorted(stamps[chosen], key=stamps[chosen].__getitem__)[-capacity:]
            stamps[chosen] = {block: stamps[chosen][block] for block in keep}
    return out


@pytest.mark.parametrize("name", MANIFEST)
def test_the_description_has_the_publishers_numbers(name: str):
    entry, found = MANIFEST[name], workload(traces.window(trace(name)))
    assert found.prompt.mean == pytest.approx(entry["prompt"]["mean"], rel=0.001)
    assert found.prompt.quantiles["p50"] == pytest.approx(entry["prompt"]["p50"], rel=0.001)
    assert found.prompt.quantiles["p99"] == pytest.approx(entry["prompt"]["p99"], rel=0.002)
    assert found.output.mean == pytest.approx(entry["output"]["mean"], rel=0.005)
    assert found.rate_per_s == pytest.approx(entry["rate_per_s"], rel=0.01)
    assert found.requests == len(trace(name).arrival)
    if "bursty" in entry:
        assert (("in bursts" in found.says), ("like a Poisson stream" in found.says)) == (entry["bursty"], not entry["bursty"])
    if "hit_ratio" in entry:
        assert found.hit_ratio == pytest.approx(entry["hit_ratio"], abs=0.0006)
        assert len({block for blocks in trace(name).blocks for block in blocks}) == entry["distinct_blocks"]


@pytest.mark.parametrize("name", HASHED)
@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize("capacity", [POOL, None])
def test_four_engines_hit_as_a_direct_simulation_has_it(name: str, routed: bool, capacity: int | None):
    requests = trace(name).blocks[:1500]
    assert list(replayed(requests, capacity, 4, routed=routed).by_request) == direct(requests, capacity, 4, routed=routed)


@pytest.mark.parametrize("name", HASHED)
def test_routing_keeps_what_dealing_out_loses(name: str):
    """With endless caches routing loses nothing; at random each of four engines misses what one missed, at most."""
    found = {one["engines"]: one for one in traces.routing(trace(name), engines=(1, 4))}
    one, four = found[1], found[4]
    assert four["routed_hit_ratio"] == pytest.approx(one["routed_hit_ratio"], abs=0.01)
    assert four["random_hit_ratio"] < 0.75 * one["random_hit_ratio"]
    assert replicas.spread(one["random_hit_ratio"], 4) <= four["random_hit_ratio"] <= one["random_hit_ratio"]


def test_with_small_caches_more_engines_hold_more_when_routed():
    requests = trace("mooncake_synthetic.jsonl.gz")
    found = {one["engines"]: one for one in traces.routing(requests, capacity_tokens=POOL * traces.BLOCK, engines=(1, 4))}
    assert found[4]["routed_hit_ratio"] > 1.15 * found[1]["routed_hit_ratio"]
    assert found[4]["routed_hit_ratio"] > 1.5 * found[4]["random_hit_ratio"]


def test_an_empty_stream_hits_nothing():
    found = replayed([], 10, 2)
    assert (found.ratio, found.requests, found.by_request) == (0.0, (0, 0), ())
    assert found.tokens([], 512) == 0.0
    assert traces.routing(trace("azure_code.jsonl.gz")) == []


def test_an_engine_without_room_holds_nothing():
    assert replayed([[1, 2], [1, 2]], 0).ratio == 0.0
    assert replayed([[1, 2], [1, 2]], 1).by_request == (0, 1)  # the beginning of a prompt outlives its end


# -- files -----------------------------------------------------------------------------------------------------------------------
AZURE: Final = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.0319600,3180,8\n"
)
MOONCAKE: Final = '{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}\n{"timestamp": 2000, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}\n'


def test_both_formats_are_read_plain_and_packed(tmp_path: Path):
    for name, text in (("a.csv", AZURE), ("m.jsonl", MOONCAKE)):
        (tmp_path / name).write_text(text)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        plain, packed = traces.read(tmp_path / name), traces.read(tmp_path / f"{name}.gz")
        assert traces.sniff(tmp_path / name)
        assert traces.sniff(tmp_path / f"{name}.gz")
        assert plain.prompt.tolist() == packed.prompt.tolist()
        assert plain.arrival[0] == 0
    assert traces.read(tmp_path / "a.csv").arrival[1] == pytest.approx(1.052)
    assert traces.read(tmp_path / "m.jsonl").blocks == ([0, 1], [0, 9])
    assert traces.routing(traces.read(tmp_path / "m.jsonl"), engines=(1,))[0]["random_hit_ratio"] == pytest.approx(512 / 1600)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", '{"timestamp": 1}\n', "\0\0"])
def test_what_is_no_trace_is_not_taken_for_one(text: str, tmp_path: Path):
    (tmp_path / "x").write_text(text)
    assert not traces.sniff(tmp_path / "x")
    assert not traces.sniff(tmp_path)
    assert not traces.sniff(tmp_path / "missing")


@pytest.mark.parametrize(("text", "line"), [(AZURE + "2023-11-16,1\n", 4), (MOONCAKE + "{}\n", 3)])
def test_a_bad_line_is_named(text: str, line: int, tmp_path: Path):
    (tmp_path / "x").write_text(text)
    with pytest.raises(traces.TraceError, match=f"line {line}: expected"):
        traces.read(tmp_path / "x")


def test_every_trace_says_where_it_is_from_and_under_which_license():
    assert {file.name for file in HERE.glob("*.gz")} == set(MANIFEST)
    assert all(entry[key] for entry in MANIFEST.values() for key in ("source", "license", "attribution", "changes"))
