"""One table of how right the analyzers are: real pairs, healthy runs, lab scenarios, by information level.

`python -m tests.accuracy.table [--captures DIR]`: threshold rules and the lab's prototypes stand beside. Without --captures the
committed reduced inputs are read. `--only pairs|healthy|lab` prints one section.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from analyzers.model import Window

from . import lab, pairs, scores
from .scores import LEVELS, LabRow, PairRow

HEALTHY: Final = (
    "h200-0.24.0-frontend-fixed",
    "h200-0.24.0-kv-preempt-fixed",
    "h200-0.24.0-mixed-both-fixed",
    "h200-0.24.0-mixed-kv-fixed",
    "h200-0.24.0-prefill-backlog-fixed",
    "h200-0.24.0-prefix-salt-fixed",
    "h200-0.24.0-prefix-thrash-fixed",
    "h200-0.24.0-slots-fixed",
    "h200-0.33.0-dp2-affinity-s1",
    "h200-0.33.0-kv-preempt-fixed-s2",
    "h200-0.33.0-moe-normal-s1",
    "h200-0.33.0-spec-off-high-s1",
    "cpu-0.20.2-a-baseline",
    "cpu-0.32.0-a-baseline",
    "cpu-0.8.5.post2-a-baseline",
)
METHODS: Final = ("books", "twin", "both", *(f"prototype {which}" for which in lab.PROTOTYPES))
SAID: Final = {
    "books": "ours, books (what `attribute` says)",
    "twin": "ours, twin",
    "both": "ours, twin inside its gate, else books",
    "prototype books": "prototype, books",
    "prototype twin": "prototype, twin",
    "prototype first": "first prototype, anchored twin",
}


def percent(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{100 * value:+.0f} %"


def pair_lines(source: Callable[[str], Window]) -> Iterator[str]:
    yield "## Real pairs: the fault run alone as input, truth on the server's side"
    yield ""
    yield "Error of the predicted saving (predicted / true - 1). `segment`: without the long prompts. Rule: simple alert rules."
    yield ""
    yield "| fault run | level | target | truly saved s | named | right | books | twin | gate ttft, decode | segment | rule says |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for name, truth in scores.truths().items():
        for row in scores.pair_rows(name, source(name), truth):
            yield _pair(row)


def _pair(row: PairRow) -> str:
    gate = ", ".join(f"{v:.2f}" for v in row.gate.values()) + ("" if row.holds or not row.gate else " out")
    named = row.limiting or row.verdict
    if row.runner_up:
        named += f" (then {row.runner_up})"
    right = "yes" if row.right else "refused" if row.verdict == "undetermined" else "no"
    return (
        f"| {row.capture} | {row.level} | {row.target} | {row.saved:.4g} | {named} | {right} | {percent(row.books)} | {percent(row.twin)} | {gate or '-'} | "
        f"{percent(row.segment)} | {row.rule}{'' if row.rule in row.links else ' (no)'} |"
    )


def healthy_lines(source: Callable[[str], Window]) -> Iterator[str]:
    yield "## Healthy runs: the largest fault as a share of what was measured"
    yield ""
    yield "| run | level | TTFT: fault, API server, verdict | E2E: fault, API server, verdict | TPOT: verdict, load |"
    yield "|---|---|---|---|---|"
    for name in HEALTHY:
        window = source(name)
        for level in scores.levels_of(window):
            rows = {r.target: r for r in scores.healthy_rows(name, window, level)}
            cells = [
                f"{r.link} {r.share:.3f}, {r.api:.3f}, {r.limiting or r.verdict}" for r in (rows[t] for t in ("ttft", "e2e"))
            ]
            tpot = rows.get("tpot")
            yield f"| {name} | {level} | {cells[0]} | {cells[1]} | {tpot.limiting or tpot.verdict if tpot else '-'}, {tpot.largest_load if tpot else '-'} |"


def lab_lines(rows_of: Callable[[str], Sequence[LabRow]]) -> Iterator[str]:
    data = {level: rows_of(level) for level in LEVELS}
    n = len(data["metrics"])
    yield f"## Lab: {n} simulated dense scenarios with prefix caching, truth by re-running them with links fixed"
    yield ""
    yield (
        "Left out: scenarios with experts (the lab's straggler is one factor on the step, the product's rule is about experts) and with caching off "
        "(undetermined by rule). top-1: the largest part is a link that holds at least 0.85 of what the largest truly does."
    )
    yield ""
    yield "| level | method | E2E top-1 | TTFT top-1 | E2E part error, median / p90 | TTFT part error | saving of the best fault: median / p90 error (n) | gate holds |"
    yield "|---|---|---|---|---|---|---|---|"
    for level in LEVELS:
        for which in METHODS:
            yield _lab(level, which, data[level])
        right = [scores.mean([scores.rule_right(r, t) for r in data[level]]) for t in ("e2e", "ttft")]
        yield f"| {level} | threshold rules | {right[0]:.2f} | {right[1]:.2f} | - | - | - | - |"
    yield ""
    yield "| level | method | parts add up to (worst, s) | ranges given | hold the truth: all, active links |"
    yield "|---|---|---|---|---|"
    for level in LEVELS:
        for method in ("books", "both"):
            every, many = scores.coverage(data[level], active=False, method=method)
            active, some = scores.coverage(data[level], active=True, method=method)
            worst = max(r.additivity for r in data[level])
            yield f"| {level} | {SAID[method]} | {worst:.1e} | {many} | {every:.2f}, {active:.2f} (n {some}) |"


def _lab(level: str, which: str, rows: Sequence[LabRow]) -> str:
    top = [scores.mean([scores.top_right(r, which, t) for r in rows]) for t in ("e2e", "ttft")]
    error = [[scores.part_error(r, which, t) for r in rows] for t in ("e2e", "ttft")]
    saving = [scores.best_saving(r, which) for r in rows]
    asked = sum(s is not None for s in saving)
    holds = [a.holds for a in (r.answers[which] for r in rows) if a is not None]
    shown = f"{scores.mean(holds):.2f}" if which == "twin" else "-"
    return (
        f"| {level} | {SAID[which]} | {top[0]:.2f} | {top[1]:.2f} | {scores.median(error[0]):.3f} / {scores.median(error[0], 0.9):.3f} | "
        f"{scores.median(error[1]):.3f} / {scores.median(error[1], 0.9):.3f} | {scores.median(saving):.2f} / {scores.median(saving, 0.9):.2f} ({asked}) | {shown} |"
    )


def scenario_lines(rows_of: Callable[[str], Sequence[LabRow]], target: str) -> Iterator[str]:
    """One line a scenario and level: what is true, what each method says (for looking into misses)."""
    for level in LEVELS:
        for row in rows_of(level):
            m = row.scenario.measured[target]
            yield f"{level} {row.scenario.seed} {'+'.join(row.scenario.faults) or 'none'} {target} {m:.3f} s: truth {_shares(row.scenario.parts[target], m)}"
            for which in METHODS:
                answer = row.answers[which]
                if answer is not None:
                    yield f"    {which:<16} {scores.top_right(row, which, target)!s:<5} {_shares(answer.parts[target], m)} | best saving off {scores.best_saving(row, which, target)}"


def _shares(parts: Mapping[str, float], whole: float) -> str:
    shown = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{k} {v / whole:.2f}" for k, v in shown if abs(v) > 0.01 * whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captures", type=Path, help="folder of raw captures; default: the committed reduced inputs")
    parser.add_argument("--only", choices=("pairs", "healthy", "lab", "scenarios"))
    parser.add_argument("--target", choices=scores.TARGETS, default="e2e", help="target of --only scenarios")
    parser.add_argument(
        "--lab", type=Path, default=lab.FILE, help="other scenarios than the committed ones, as `lab export` writes them"
    )
    given = parser.parse_args()
    started = time.monotonic()

    def source(name: str) -> Window:
        return pairs.window(given.captures / name) if given.captures else scores.capture(name)

    def rows_of(level: str) -> Sequence[LabRow]:
        return scores.lab_rows(level, given.lab)

    sections = {
        "pairs": lambda: pair_lines(source),
        "healthy": lambda: healthy_lines(source),
        "lab": lambda: lab_lines(rows_of),
        "scenarios": lambda: scenario_lines(rows_of, given.target),
    }
    for name, lines in sections.items():
        if given.only == name or (given.only is None and name != "scenarios"):
            for line in lines():
                print(line, flush=True)
            print()
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
