"""Real pairs: a fault, and the same load with only the fault removed, so that the truly saved seconds are known.

`python -m tests.accuracy.pairs truth CAPTURES` computes the truth and prints it as TOML;
`python -m tests.accuracy.pairs reduce CAPTURES OUT` writes the inputs of the analyzers, one small file a capture, with the truth
and a manifest.
"""

import argparse
import gzip
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from analyzers.model import Window
from app.ingest import load
from app.pipeline import window_of
from app.store import Store

from . import packed

TABLES_SAID: Final = (
    "interval: increases and gauges between two scrapes; scrape: duration and success; stat: stats lines; step: iteration lines; "
    "request: server seconds and token counts of each request, client's TTFT and E2E; kv: counts of stored blocks; facts: arguments, "
    "cache configuration, model shape. No prompts, ids or text; times to the microsecond"
)

# fault run, fixed run, links that the fixed run removes
PAIRS = (
    ("h200-0.24.0-frontend", "h200-0.24.0-frontend-fixed", ("frontend", "output")),
    ("h200-0.24.0-slots", "h200-0.24.0-slots-fixed", ("slots",)),
    ("h200-0.24.0-kv-preempt", "h200-0.24.0-kv-preempt-fixed", ("kv_eviction",)),
    ("h200-0.24.0-prefix-thrash", "h200-0.24.0-prefix-thrash-fixed", ("kv_eviction",)),
    ("h200-0.24.0-prefix-salt", "h200-0.24.0-prefix-salt-fixed", ("prefix_cache_miss",)),
    ("h200-0.24.0-prefill-backlog", "h200-0.24.0-prefill-backlog-fixed", ("prefill_backlog",)),
    ("h200-0.24.0-mixed", "h200-0.24.0-mixed-both-fixed", ("kv_eviction", "prefill_backlog")),
    ("h200-0.33.0-kv-preempt-s2", "h200-0.33.0-kv-preempt-fixed-s2", ("kv_eviction",)),
    ("h200-0.33.0-moe-skew-s1", "h200-0.33.0-moe-normal-s1", ("moe_imbalance",)),
    ("h200-0.33.0-dp2-spread-s1", "h200-0.33.0-dp2-affinity-s1", ("prefix_cache_miss",)),
)


@dataclass(frozen=True)
class Saved:
    """What removing the fault saved: means of the fault run, the fixed run and the difference, seconds."""

    fault: float
    fixed: float
    n: int

    @property
    def seconds(self) -> float:
        return self.fault - self.fixed


def lines(path: Path) -> Iterator[dict[str, Any]]:
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.exists():
            with gzip.open(candidate, "rt") if candidate.suffix == ".gz" else candidate.open() as file:
                for line in file:
                    yield json.loads(line)
            return


def served(folder: Path) -> dict[str, dict[str, float]]:
    """Server seconds of each request by the client's id, from its span."""
    found: dict[str, dict[str, float]] = {}
    for record in lines(folder / "spans.jsonl"):
        for resource in record["request"].get("resourceSpans", []):
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    if span["name"] == "llm_request":
                        values = {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}
                        match = re.search(r"(?:cmpl|chatcmpl)-(.+?)(?:-0)?$", str(values.get("gen_ai.request.id", "")))
                        if match:
                            found[match.group(1)] = {
                                name: float(values.get(f"gen_ai.latency.{key}", 0.0))
                                for name, key in (
                                    ("ttft", "time_to_first_token"),
                                    ("e2e", "e2e"),
                                    ("queue", "time_in_queue"),
                                    ("prefill", "time_in_model_prefill"),
                                    ("decode", "time_in_model_decode"),
                                )
                            }
    return found


def truth(fault: Path, fixed: Path) -> dict[str, Saved]:
    """Saved TTFT, E2E and TPOT on the server's side, over requests that both runs have (segment, order, lengths)."""
    rows: list[list[float]] = []
    sides = []
    for folder in (fault, fixed):
        spans = served(folder)
        by_segment: dict[str, list[tuple[dict[str, Any], dict[str, float] | None]]] = {}
        for record in sorted(lines(folder / "client.jsonl"), key=lambda r: r["id"]):
            if record["segment"] != "warmup":
                by_segment.setdefault(record["segment"], []).append((record, spans.get(record["id"])))
        sides.append(by_segment)
    for segment, first in sides[0].items():
        second = sides[1].get(segment, [])
        if len(first) != len(second):
            continue
        for (a, x), (b, y) in zip(first, second, strict=True):
            if a["status"] == b["status"] == "ok" and a["prompt_tokens"] == b["prompt_tokens"] and x and y:
                rows.append(
                    [
                        x["ttft"],
                        y["ttft"],
                        x["e2e"],
                        y["e2e"],
                        x["decode"],
                        y["decode"],
                        a["output_tokens"] - 1,
                        b["output_tokens"] - 1,
                    ]
                )
    if len(rows) < 30:  # other lengths in both runs (a salt draws from the same stream): whole runs
        means = []
        for side in sides:
            whole = [(s, r["output_tokens"] - 1) for rows_ in side.values() for r, s in rows_ if s and r["status"] == "ok"]
            means.append(
                (
                    np.mean([s["ttft"] for s, _ in whole]),
                    np.mean([s["e2e"] for s, _ in whole]),
                    sum(s["decode"] for s, _ in whole) / sum(t for _, t in whole),
                )
            )
        return {name: Saved(float(means[0][i]), float(means[1][i]), 0) for i, name in enumerate(("ttft", "e2e", "tpot"))}
    m = np.array(rows)
    return {
        "ttft": Saved(float(m[:, 0].mean()), float(m[:, 1].mean()), len(m)),
        "e2e": Saved(float(m[:, 2].mean()), float(m[:, 3].mean()), len(m)),
        "tpot": Saved(float(m[:, 4].sum() / m[:, 6].sum()), float(m[:, 5].sum() / m[:, 7].sum()), len(m)),
    }


def window(folder: Path) -> Window:
    """All that a recording holds."""
    store = Store()
    load(store, [folder])
    return window_of(store)


def truth_toml(captures: Path) -> str:
    """Truth of all pairs: means of the fault run, the fixed run and what the fix saved, in seconds."""
    out = []
    for fault, fixed, links in PAIRS:
        found = truth(captures / fault, captures / fixed)
        out.append(f'["{fault}"]\nfixed = "{fixed}"\nlinks = {json.dumps(list(links))}')
        out += [
            f"{name} = {{ fault = {s.fault:.6g}, fixed = {s.fixed:.6g}, saved = {s.seconds:.6g}, n = {s.n} }}"
            for name, s in found.items()
        ]
        out.append("")
    return "\n".join(out)


def reduce(captures: Path, out: Path) -> None:
    """One small file a capture, truth.toml and manifest.toml."""
    out.mkdir(parents=True, exist_ok=True)
    manifest = [
        f"# What lies here and where it comes from. Written by `python -m tests.accuracy.pairs reduce`.\n\nkept = {json.dumps(TABLES_SAID)}\n"
    ]
    for folder in sorted(p for p in captures.iterdir() if (p / "meta.json").exists()):
        file = out / f"{folder.name}.json.gz"
        packed.write(file, packed.pack(packed.reduced(window(folder))))
        manifest.append(_provenance(folder, file))
        print(file.name, file.stat().st_size, flush=True)
    (out / "truth.toml").write_text(
        "# Seconds saved on the server's side, over requests that both runs have (n = 0: whole runs).\n\n" + truth_toml(captures)
    )
    (out / "manifest.toml").write_text("\n".join(manifest))


def _provenance(folder: Path, file: Path) -> str:
    meta = json.loads((folder / "meta.json").read_text())
    version = json.loads(meta.get("version") or "{}").get("version") or folder.name.split("-")[1]
    hardware = (
        "one or two NVIDIA H200, random weights"
        if meta.get("profile") == "gpu"
        else "2 CPU cores shared with other work, a tiny model with random weights"
    )
    day = datetime.fromtimestamp(meta["t_load_start"], UTC).date().isoformat()
    return (
        f'[[file]]\nname = "{file.name}"\nkind = "recorded, reduced"\nvllm_version = "{version}"\nhardware = "{hardware}"\n'
        f'recorded = "{day}"\nseed = {meta.get("seed", 0)}\nflags = {json.dumps(shlex.join(meta["command"]))}\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, said in (("truth", "print what each fix truly saved"), ("reduce", "write the committed inputs")):
        verb = verbs.add_parser(name, help=said)
        verb.add_argument("captures", type=Path)
        if name == "reduce":
            verb.add_argument("out", type=Path)
    given = parser.parse_args()
    if given.verb == "truth":
        print(truth_toml(given.captures))
    else:
        reduce(given.captures, given.out)


if __name__ == "__main__":
    main()
