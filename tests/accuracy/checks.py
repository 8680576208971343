"""The values that the bars of issue 4 hold, one function a group: name -> value (1 or 0 where something is true or not)."""

import math
from collections.abc import Iterator
from typing import Final

from analyzers.attribute import attribute
from analyzers.combine import roles
from analyzers.compare import compare
from analyzers.hits import hits_of
from analyzers.model import Attribution, Target

from . import lab, scores
from .scores import LEVELS, PairRow
from .table import HEALTHY

PLAIN: Final = (  # pairs whose link must be named for TTFT and E2E at metrics and at requests
    "h200-0.24.0-frontend",
    "h200-0.24.0-slots",
    "h200-0.24.0-kv-preempt",
    "h200-0.24.0-prefix-thrash",
    "h200-0.24.0-prefill-backlog",
    "h200-0.33.0-kv-preempt-s2",
)
BY_TWIN: Final = {"h200-0.24.0-prefix-thrash": {"e2e"}}  # link and savings asked of the twin
BY_SEGMENT: Final = {"h200-0.24.0-prefill-backlog"}  # savings asked as "without the long prompts"
QUEUED_AS_MEASURED: Final = {  # a queue behind prompts is really there in TTFT
    ("h200-0.33.0-moe-normal-s1", "ttft"),
    ("h200-0.24.0-mixed-kv-fixed", "ttft"),
}
COMPARED: Final = {  # (before, after): target -> (sign of the measured change, words of a mechanism that must explain most of it)
    ("h200-0.33.0-pd-aggregated-s1", "h200-0.33.0-pd-disaggregated-s1"): {
        "ttft": (1, "server's leg"),
        "tpot": (-1, "without prompts"),
    },
    ("h200-0.33.0-prefix-thrash-s1", "h200-0.33.0-prefix-thrash-offload-s1"): {
        "ttft": (-1, "prefix hits"),
        "e2e": (-1, "prefix hits"),
        "tpot": (-1, "prefix hits"),
    },
    ("h200-0.33.0-spec-off-high-s1", "h200-0.33.0-spec-ngram-high-s1"): {"e2e": (-1, "speculation"), "tpot": (-1, "speculation")},
    ("h200-0.33.0-moe-skew-s1", "h200-0.33.0-moe-skew-eplb-s1"): {"e2e": (-1, "balancedness"), "tpot": (-1, "balancedness")},
}
Values = Iterator[tuple[str, float]]


# -- real pairs -----------------------------------------------------------------------------------------------------------------
def pair(name: str) -> Values:
    """One real pair."""
    window, truth = scores.capture(name), scores.truths()[name]
    rows = {(r.level, r.target): r for r in scores.pair_rows(name, window, truth)}
    if name in PLAIN:
        for level in ("metrics", "requests"):
            for target in ("ttft", "e2e"):
                row = rows[level, target]
                by_twin = target in BY_TWIN.get(name, ())
                yield f"pair/{name}/{level}/{target}/named", float(row.right_by_twin if by_twin else row.right)
                yield f"pair/{name}/{level}/{target}/saving", _saving(row)
    found = SPECIAL.get(name)
    if found:
        yield from found(name, rows)


def _saving(row: PairRow) -> float:
    if row.capture in BY_SEGMENT:
        return abs(row.segment)
    return abs(row.twin if row.target in BY_TWIN.get(row.capture, ()) else row.books)


def _from_log(name: str, rows: dict[tuple[str, str], PairRow]) -> Values:
    yield f"pair/{name}/logs/e2e/saving", abs(rows["logs", "e2e"].books)


def _mixed(name: str, rows: dict[tuple[str, str], PairRow]) -> Values:
    for level in ("metrics", "requests"):
        for target in ("ttft", "e2e"):
            yield f"pair/{name}/{level}/{target}/limiting is kv_eviction", float(rows[level, target].limiting == "kv_eviction")
            yield f"pair/{name}/{level}/{target}/then prefill_backlog", float(rows[level, target].runner_up == "prefill_backlog")
    for target in ("ttft", "e2e"):
        yield f"pair/{name}/requests/{target}/joint", abs(rows["requests", target].segment)
    yield f"pair/{name}/requests/gate shown", float(len(rows["requests", "e2e"].gate) > 0)


def _experts(name: str, rows: dict[tuple[str, str], PairRow]) -> Values:
    for target in ("e2e", "tpot"):
        yield f"pair/{name}/logs/{target}/named", float(rows["logs", target].limiting == "moe_imbalance")
        yield f"pair/{name}/logs/{target}/saving", abs(rows["logs", target].books)
    first = rows["logs", "ttft"]
    yield f"pair/{name}/logs/ttft/named", float((first.limiting, first.runner_up) == ("prefill_backlog", "moe_imbalance"))


def _spread(name: str, rows: dict[tuple[str, str], PairRow]) -> Values:
    for target in ("ttft", "e2e"):
        yield f"pair/{name}/hashes/{target}/named", float(rows["hashes", target].limiting == "prefix_cache_miss")
        yield f"pair/{name}/hashes/{target}/saving", abs(rows["hashes", target].books)
    found = attribute(scores.restrict(scores.capture(name), "metrics"))
    for target in ("ttft", "e2e"):
        yield f"pair/{name}/metrics/{target}/refused", _refused(_target(found, target), "another engine", "kv-events")


def _salted(name: str, rows: dict[tuple[str, str], PairRow]) -> Values:
    for level in sorted({level for level, _ in rows}, key=LEVELS.index):
        found = attribute(scores.restrict(scores.capture(name), level))
        for target in ("ttft", "e2e"):
            yield f"pair/{name}/{level}/{target}/refused", _refused(_target(found, target), "unseen sharing", "kv-events")


def _target(found: Attribution, name: str) -> Target:
    target = found.targets[name]
    assert target is not None
    return target


def _refused(target: Target, what: str, measure: str) -> float:
    """1 where the verdict is left open and a refusal says what is open and what to measure."""
    said = any(what in r.what and measure in r.measure for r in target.cannot_determine)
    return float(target.verdict == "undetermined" and said)


SPECIAL: Final = {
    "h200-0.33.0-kv-preempt-s2": _from_log,
    "h200-0.24.0-mixed": _mixed,
    "h200-0.33.0-moe-skew-s1": _experts,
    "h200-0.33.0-dp2-spread-s1": _spread,
    "h200-0.24.0-prefix-salt": _salted,
}


# -- healthy and other runs -----------------------------------------------------------------------------------------------------
def healthy(name: str) -> Values:
    """The largest fault of a healthy run over its levels, TTFT and E2E."""
    window = scores.capture(name)
    rows = [row for level in scores.levels_of(window) for row in scores.healthy_rows(name, window, level)]
    for target in ("ttft", "e2e"):
        of = [r for r in rows if r.target == target]
        if (name, target) not in QUEUED_AS_MEASURED:
            yield f"healthy/{name}/{target}/fault", max(r.share for r in of)
        else:
            yield (
                f"healthy/{name}/{target}/nothing but the queue behind prompts",
                float({r.link for r in of} == {"prefill_backlog"}),
            )
        yield f"healthy/{name}/{target}/api", max(r.api for r in of)


def other() -> Values:
    """Runs with a sentence of their own in the issue."""
    yield from _tpot_of_a_backlog()
    yield from _old_balancedness()
    yield from _two_servers()
    yield from _small_machine()
    engine = scores.capture("h200-0.33.0-prefix-thrash-s1").engines[0]
    yield "hits/h200-0.33.0-prefix-thrash-s1/endless", abs(hits_of(engine).endless - 0.741)


def _tpot_of_a_backlog() -> Values:
    name = "h200-0.24.0-prefill-backlog"
    window = scores.capture(name)
    baseline = attribute(scores.capture(f"{name}-fixed"))
    alone, against = _target(attribute(window), "tpot"), _target(attribute(window, baseline=baseline), "tpot")
    yield f"tpot/{name}/not limited", float(alone.verdict == "healthy")
    yield f"tpot/{name}/largest load", float(alone.load == "prefill_backlog")
    yield (
        f"tpot/{name}/limited against its baseline",
        float((against.verdict, against.limiting) == ("limited", "prefill_backlog")),
    )


def _old_balancedness() -> Values:
    for name in ("h200-0.24.0-moe-skew", "h200-0.24.0-moe-even", "h200-0.24.0-moe-skew-eplb"):
        window = scores.capture(name)
        for target in ("ttft", "e2e", "tpot"):
            found = _target(attribute(scores.restrict(window, "logs")), target)
            yield f"experts/{name}/{target}/no seconds", float(found.part("moe_imbalance").seconds is None)
            yield (
                f"experts/{name}/{target}/refused by version",
                _refused(found, "balancedness lines of vLLM 0.24.0", "balancedness"),
            )


def _two_servers() -> Values:
    chain, replicas = (scores.capture(f"h200-0.33.0-pd-{kind}-s1") for kind in ("disaggregated", "aggregated"))
    yield "servers/pd-disaggregated-s1/one chain", float(sorted(roles(chain.engines)) == ["decode", "prefill"])
    yield "servers/pd-aggregated-s1/two replicas", float(roles(replicas.engines) == ["both", "both"])
    found = attribute(chain)
    first = _target(found, "ttft")
    legs = {r.role: r for r in found.engines}
    both = (legs["prefill"].targets["e2e"].measured_s or math.nan) + (legs["decode"].targets["ttft"].measured_s or math.nan)
    yield "servers/pd-disaggregated-s1/TTFT is both legs", float(abs((first.measured_s or math.nan) - both) < 1e-9)
    yield "servers/pd-disaggregated-s1/transfer seconds", float((first.part("kv_transfer").seconds or 0.0) > 0)


def _small_machine() -> Values:
    """Captures on a CPU: orders of events hold, seconds mean little."""
    for name, link in (("i-queue-decode", "slots"), ("c-kv-pressure", "kv_eviction"), ("b-prefill-backlog", "prefill_backlog")):
        window = scores.capture(f"cpu-0.32.0-{name}")
        for level in scores.levels_of(window):
            found = _target(attribute(scores.restrict(window, level)), "ttft")
            yield f"cpu/{name}/{level}/ttft is {link}", float(found.limiting == link)
    hit, miss = (hits_of(scores.capture(f"cpu-0.32.0-{name}").engines[0]).now for name in ("d-prefix-hit", "e-prefix-miss"))
    yield "cpu/d and e are told apart by hits", float(hit > 0.5 > 0.05 > miss)
    for name in ("g-restart", "h-aborts"):
        found = attribute(scores.capture(f"cpu-0.32.0-{name}"))
        for target in ("ttft", "e2e"):
            yield f"cpu/{name}/{target}/no false cause", float(_target(found, target).limiting is None)
    said = " ".join(attribute(scores.capture("cpu-0.32.0-h-aborts")).notes)
    yield "cpu/h-aborts/aborted requests named as unseen", float("aborted" in said and "in no finished histogram" in said)


def compared(before: str, after: str) -> Values:
    """`compare` gives the measured sign, and the mechanism as the largest one of that sign."""
    found = compare(scores.capture(before), scores.capture(after))
    for target, (sign, word) in COMPARED[before, after].items():
        change = found.changes[target]
        difference = change.difference_s or 0.0
        yield f"compare/{after}/{target}/sign", float(sign * difference > 0)
        along = {k: v for k, v in (change.mechanisms or {}).items() if sign * v > 0}
        largest = max(along, key=lambda k: abs(along[k]), default="")
        yield f"compare/{after}/{target}/mechanism", float(word in largest)
        explained = abs(sum((change.mechanisms or {}).values()) - difference) <= 0.15 * abs(difference)
        yield f"compare/{after}/{target}/explained", float(explained)


# -- lab ------------------------------------------------------------------------------------------------------------------------
def lab_level(level: str) -> Values:
    """All scenarios at one level. `both`: the twin's answer inside its gate, else the books'."""
    rows = scores.lab_rows(level)
    top = scores.mean([scores.top_right(r, "both", "e2e") for r in rows])
    yield f"lab/{level}/e2e/top", top
    yield (
        f"lab/{level}/e2e/beside the prototype",
        top - scores.mean([scores.top_right(r, "prototype first", "e2e") for r in rows]),
    )
    yield f"lab/{level}/e2e/saving", scores.median([scores.best_saving(r, "both") for r in rows])
    for method, name in (("books", ""), ("both", " by the twin")):
        yield f"lab/{level}/coverage{name} of active links", scores.coverage(rows, active=True, method=method)[0]
        yield f"lab/{level}/coverage{name}", scores.coverage(rows, active=False, method=method)[0]
    yield f"lab/{level}/additivity", max(r.additivity for r in rows)


def lab_series(level: str) -> Values:
    """Parts grow with the fault (a percent of the measured value is allowed), and without one nothing is raised."""
    last: dict[str, float] = {}
    falls: dict[str, float] = {}
    for run in lab.series():
        found = _target(attribute(scores.restrict(run.window, level)), "e2e")
        measured = found.measured_s or math.nan
        if run.link is None:
            yield f"lab/{level}/healthy fault", max((p.fault_s or 0.0) / measured for p in found.parts)
            continue
        seconds = found.part(run.link).seconds or 0.0
        fall = max(0.0, last.get(run.link, 0.0) - seconds - 0.01 * measured) / measured
        falls[run.link] = max(falls.get(run.link, 0.0), fall)
        last[run.link] = seconds
    for link, fall in falls.items():
        yield f"lab/{level}/{link}/not growing", fall


def groups() -> dict[str, list[tuple[str, float]]]:
    """Every group of values by name."""
    out = {f"pair {name}": list(pair(name)) for name in scores.truths()}
    out |= {f"healthy {name}": list(healthy(name)) for name in HEALTHY}
    out["other"] = list(other())
    out |= {f"compare {after}": list(compared(before, after)) for before, after in COMPARED}
    for level in LEVELS:
        out |= {f"lab {level}": list(lab_level(level)), f"series {level}": list(lab_series(level))}
    return out


def all_values() -> dict[str, float]:
    return {name: value for group in groups().values() for name, value in group}
