"""Whatever an engine's numbers are, what is judged of them adds up: measured = floor + parts + unexplained."""

import json
import math
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from analyzers.attribute import attribute
from analyzers.links import CHAIN
from analyzers.model import TARGETS, Attribution, Engine, Event, Incident, Target, Window
from app.pipeline import _STATE
from app.reports import json as json_report
from app.reports import text as text_report
from app.store import Store

SMALL: Final = 1e-6
STAGES: Final = ("queue", "prefill", "decode")


def columns() -> dict[str, list[str]]:
    """Return the columns of what the pipeline hands over, by view."""
    views = {"interval": "interval_row", "stat": "stat_row", "step": "step_row", "request": "request_row", "scrape": "scrape"}
    with Store() as store:
        found = {name: [row[0] for row in store.rows(f"DESCRIBE {view}")] for name, view in views.items()}
    return {name: [column for column in names if column not in {"instance", "engine"}] for name, names in found.items()}


COLUMNS: Final = columns()
COUNTERS: Final = [name for name in COLUMNS["interval"] if name not in _STATE]
NEEDED: Final = {f"{stage}_{unit}" for stage in (*STAGES, "e2e") for unit in "sn"}
LENGTHS: Final = {"prompt_tokens", "generation_tokens", "request_prompt_tokens", "request_prompt_n", "request_output_tokens"}
OPTIONAL: Final = sorted(set(COUNTERS) - NEEDED - LENGTHS)  # lengths: see the test of unknown ones
HISTOGRAMS: Final = [(name, f"{name.removesuffix('_s')}_n") for name in COUNTERS if f"{name.removesuffix('_s')}_n" in COUNTERS]
FAMILIES: Final = [
    *HISTOGRAMS,  # sum and count
    ("draft_n", "draft_tokens", "accepted_tokens"),
    ("computed_tokens", "local_hit_tokens", "external_hit_tokens"),
    ("prefix_query_tokens", "prefix_hit_tokens"),
    ("step_n", "step_tokens"),
]
TOGETHER: Final = {one: family for family in FAMILIES for one in family}  # exposed together, or not at all
SIZES: Final = st.sampled_from([0.0, 1e-9, 1e-3, 0.02, 1.0, 30.0, 1e4])


class Made:
    """Engines that print without their arrays."""

    def __init__(self, *engines: Engine) -> None:
        self.engines = engines

    def __repr__(self) -> str:
        return "\n".join(f"total={e.total}, facts={e.facts}, kv={e.kv}, steps={len(e.step.get('ts', ()))}" for e in self.engines)


@st.composite
def engines(draw: Any, *, whole: bool = True) -> Engine:
    """Return an engine whose counters fit each other: stages are part of E2E, tokens of requests, gauges of counts."""
    dice = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(0, 40))
    rate = draw(st.sampled_from([0.0, 0.1, 1.0, 20.0, 500.0]))
    dt = dice.uniform(0.5, 1.5, n) if draw(st.booleans()) else np.ones(n)
    ts = 1.8e9 + np.cumsum(dt)
    count = dice.poisson(rate * dt).astype(float)
    means = {stage: draw(SIZES) for stage in (*STAGES, "frontend", "output")}
    prompt, output = draw(st.sampled_from([1.0, 100.0, 12_000.0])), draw(st.sampled_from([1.0, 2.0, 300.0]))
    means["decode"] = 0.0 if output == 1 else means["decode"] or 1e-6
    spread = np.ones(n) if output == 1 else dice.uniform(0.8, 1.2, n)
    row: dict[str, Any] = {name: np.full(n, np.nan) for name in COLUMNS["interval"]}
    noise = {stage: dice.uniform(0.5, 1.5, n) if draw(st.booleans()) else np.ones(n) for stage in means}
    seconds = {stage: count * mean * noise[stage] for stage, mean in means.items()}
    for stage in STAGES:
        row[f"{stage}_s"], row[f"{stage}_n"] = seconds[stage], count.copy()
    row["e2e_s"], row["e2e_n"] = sum(seconds.values()), count.copy()
    first = count if output == 1 or draw(st.booleans()) else dice.poisson(rate * dt).astype(float)
    row["ttft_s"], row["ttft_n"] = first * (means["frontend"] + means["queue"] + means["prefill"]), first
    hits, elsewhere = draw(st.sampled_from([0.0, 0.5, 0.99, 1.0])), draw(st.sampled_from([0.0, 0.0, 0.4, 1.0]))
    row |= {
        "prompt_tokens": first * prompt, "generation_tokens": np.round(count * output * spread),
        "computed_tokens": first * prompt * (1 - hits), "local_hit_tokens": first * prompt * hits * (1 - elsewhere),
        "external_hit_tokens": first * prompt * hits * elsewhere, "prefix_query_tokens": first * prompt,
        "prefix_hit_tokens": first * prompt * hits, "request_prompt_tokens": count * prompt, "request_prompt_n": count.copy(),
        "request_output_tokens": count * output, "preemptions": dice.poisson(draw(st.sampled_from([0.0, 0.3, 5.0])), n).astype(float),
        "step_n": dice.poisson(draw(st.sampled_from([0.0, 5.0, 150.0])) * dt).astype(float), "itl_n": count * max(output - 1, 0),
        "itl_s": seconds["decode"], "aborted_n": dice.poisson(0.1, n).astype(float), "process_cpu_s": dt * dice.uniform(0, 1.3, n),
        "http_s": sum(seconds.values()), "http_n": count.copy(), "draft_n": count * (output - 1), "draft_tokens": count * (output - 1) * 3,
        "accepted_tokens": count * (output - 1) * dice.uniform(0, 3, n), "nixl_transfer_s": count * 0.004, "nixl_transfer_n": count.copy(),
        "offload_load_s": count * 0.01, "step_tokens": first * prompt + count * output,
    }  # fmt: skip
    cap = draw(st.sampled_from([1.0, 16.0, 256.0]))
    running = np.minimum(dice.poisson(draw(st.sampled_from([0.0, 3.0, 40.0])), n + 1).astype(float), cap)
    gauges = {
        "running": running,
        "waiting": dice.poisson(draw(st.sampled_from([0.0, 0.5, 60.0])), n + 1).astype(float),
        "deferred": dice.poisson(draw(st.sampled_from([0.0, 2.0])), n + 1).astype(float),
        "kv_usage_ratio": np.clip(dice.normal(draw(st.sampled_from([0.1, 0.97])), 0.05, n + 1), 0, 1),
    }
    for name, values in gauges.items():
        row[name], row[f"{name}_before"] = values[1:], values[:-1]
    may_miss = [name for name in OPTIONAL if output > 1 or not name.startswith("ttft")]  # see the test of one token
    for name in draw(st.lists(st.sampled_from([*may_miss, *gauges]), max_size=12, unique=True)):
        for column in {name, f"{name}_before", *TOGETHER.get(name, ())} & set(row):
            row[column] = np.full(n, np.nan)  # not exposed by this version
    if n and draw(st.booleans()):
        for name in draw(st.lists(st.sampled_from(may_miss), max_size=4, unique=True)):
            hole = dice.random(n) < 0.2
            for column in (name, *TOGETHER.get(name, ())):
                row[column] = np.where(hole, np.nan, row[column])
    row |= {"ts": ts, "dt_s": dt, "epoch": np.zeros(n), "restarted": dice.random(n) < draw(st.sampled_from([0.0, 0.05])),
            "timed": np.full(n, draw(st.booleans()) or whole)}  # fmt: skip
    assert list(row) == COLUMNS["interval"] or set(row) == set(COLUMNS["interval"])
    total = {name: float(np.nansum(row[name])) for name in COUNTERS if np.isfinite(row[name]).any()}
    return Engine(
        "127.0.0.1:8000", "0", draw(st.sampled_from(["m", None])), draw(st.sampled_from(["0.24.0", "0.33.0", None])),
        interval=row, scrape=scraped(ts, dice), stat=nothing("stat"), step=steps(draw, ts, dice, 5.0 if output > 1 else 0.0), request=nothing("request"),
        bucket=buckets(draw, dice), total=total, facts=draw(facts(cap)), kv=draw(kv(total.get("computed_tokens", 0.0))), event=draw(events()),
    )  # fmt: skip


def nothing(view: str) -> dict[str, Any]:
    return {name: np.zeros(0) for name in COLUMNS[view]}


def scraped(ts: Any, dice: Any) -> dict[str, Any]:
    count = len(ts)
    took = np.where(dice.random(count) < 0.2, np.nan, dice.uniform(0, 1, count))
    return {
        "file_id": np.ones(count),
        "ts": ts,
        "duration_s": took,
        "ok": dice.random(count) < 0.9,
        "timed": np.ones(count, bool),
    }


def steps(draw: Any, ts: Any, dice: Any, together: float) -> dict[str, Any]:
    """Return iteration lines over the same time; often none."""
    count = draw(st.sampled_from([0, 0, 3, 400])) if len(ts) else 0
    rows: dict[str, Any] = nothing("step")
    if count:
        context = dice.poisson(0.3, count).astype(float)
        decoding = dice.poisson(together, count).astype(float)
        rows |= {
            "ts": np.sort(dice.uniform(ts[0], ts[-1] + 1, count)), "fine": np.full(count, draw(st.booleans())), "line": np.arange(count) + 1.0,
            "iteration": np.arange(count) + 1.0, "context_requests": context, "context_tokens": context * 500, "generation_requests": decoding,
            "generation_tokens": decoding, "elapsed_s": dice.uniform(0, 0.1, count), "kv_usage_ratio": dice.uniform(0, 1, count),
            "dummy": dice.random(count) < 0.05, "file": np.full(count, "server.log", dtype=object),
        }  # fmt: skip
    return rows


def buckets(draw: Any, dice: Any) -> dict[str, Any]:
    le = np.array([0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, math.inf])
    sizes = np.array([100.0, 1000.0, 10_000.0, math.inf])
    made = {
        "vllm:inter_token_latency_seconds": (le, dice.poisson(10, len(le)).astype(float)),
        "vllm:request_prompt_tokens": (sizes, dice.poisson(10, len(sizes)).astype(float)),
        "vllm:request_generation_tokens": (sizes, np.zeros(len(sizes))),
    }
    return {name: made[name] for name in draw(st.lists(st.sampled_from(sorted(made)), unique=True))}


def facts(cap: float) -> Any:
    shape = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "intermediate": 14336}
    experts = {**shape, "experts": 128, "experts_per_token": 8, "moe_intermediate": 768}
    known = {
        "max_num_seqs": st.just(cap), "max_num_batched_tokens": st.sampled_from([512, 8192]), "kv_blocks": st.sampled_from([100, 58_000]),
        "block_size": st.just(16), "prefix_caching": st.booleans(), "written_tokens": st.sampled_from([0.0, 1e3, 1e9]),
        "speculative": st.booleans(), "connector": st.sampled_from([True, False, None]), "api_servers": st.sampled_from([1, 2, None]),
        "shape": st.sampled_from([{}, shape, experts]), "device_name": st.sampled_from(["H200", "CPU", None]),
        "graph_size": st.sampled_from([512, math.inf]), "expert_parallel": st.sampled_from([True, False, None]),
        "eplb": st.sampled_from([True, False, None]), "data_parallel": st.sampled_from([1, 2]), "tensor_parallel": st.sampled_from([1, 2]),
    }  # fmt: skip
    return st.fixed_dictionaries({"args": st.just({}), "args_known": st.booleans()}, optional=known)


def kv(computed: float) -> Any:
    """Return counts of KV events: what was stored again or elsewhere are prompt tokens that were computed."""
    shares = st.sampled_from([(0.0, 0.0), (0.0, 0.3), (0.9, 0.0), (0.5, 0.5), (1.0, 0.0)])
    rest = {
        "block_size": st.sampled_from([16.0, math.nan]),
        "gaps": st.sampled_from([0.0, 0.0, 2.0]),
        "salts": st.sampled_from([0.0, 5.0]),
    }

    def counts(share: tuple[float, float], more: dict[str, float]) -> dict[str, float]:
        blocks = computed / 16
        again, elsewhere = (part * blocks for part in share)
        return {
            "stored_blocks": blocks + 10,
            "distinct_blocks": blocks - again + 10,
            "again_blocks": again,
            "elsewhere_blocks": elsewhere,
            **more,
        }

    return st.just({}) | st.builds(counts, shares, st.fixed_dictionaries(rest))


def happened(item: tuple[str, dict[str, Any]]) -> Event:
    return Event(1.8e9, None, *item, "server.log", 1)


def events() -> Any:
    eplb = {"step": 100, "avg_tokens": 1000.0, "max_tokens": 1500.0, "balancedness": 0.667}
    made = [
        ("jit", {"kernel": "x"}),
        ("rearrange", {}),
        ("eplb", eplb),
        ("aborted", {"count": 2}),
        ("death", {"text": "EngineDeadError"}),
    ]
    one = st.sampled_from(made).map(happened)
    return st.lists(one, max_size=5).map(tuple)


def check(found: Attribution) -> None:
    """Every target of every engine and of the whole adds up, and says one of three things."""
    alone: list[Target] = [target for engine in found.engines for target in engine.targets.values()]
    whole = [target for target in found.targets.values() if target is not None]
    for target in (*alone, *whole):
        assert target.verdict in {"limited", "healthy", "undetermined"}
        assert (target.verdict == "limited") == (target.limiting is not None)
        assert target.limiting is None or target.part(target.limiting).status == "limiting"
        assert target.verdict != "undetermined" or target.cannot_determine
        if target.measured_s is None:
            assert target.verdict != "healthy" or found.level == "state"
            continue
        assert list(target.stages)[: len(TARGETS[target.name])] == list(
            TARGETS[target.name]
        )  # a chain's TTFT may have an output, too
        explained = sum(part.seconds for part in target.parts if part.seconds is not None)
        assert explained + target.floor_s + target.unexplained_s == pytest.approx(target.measured_s, abs=SMALL, rel=1e-9)
        for part in target.parts:
            assert target not in alone or (part.seconds is None) == (part.status == "unknown")
            assert part.seconds is None or sum(part.cells.values()) == pytest.approx(part.seconds, abs=SMALL, rel=1e-9)
            assert all(seconds >= -SMALL for seconds in part.cells.values()), part
        # in a mean over engines, another engine's negative residue of a stage may hide what a link holds of it here
        for stage, seconds in target.stages.items() if target in alone else ():
            column = sum(part.cells.get(stage, 0.0) for part in target.parts if part.seconds is not None)
            assert column <= max(seconds, 0.0) * (1 + 1e-9) + SMALL, (target.name, stage)


def check_reports(found: Attribution) -> None:
    """The reports can show it: no NaN in JSON, a verdict in the first line."""
    incident = Incident("0", (), found)
    json.loads(json_report.render(incident), parse_constant=pytest.fail)
    for target in (None, *TARGETS):
        text = text_report.render(incident, target)
        assert " limit" in text.splitlines()[0] or " waits " in text.splitlines()[0] or "Several servers" in text, text


# not shrunk: most of an engine hangs on one seed, and a smaller seed is no simpler engine
PHASES: Final = (Phase.explicit, Phase.reuse, Phase.generate)
patient = settings(
    deadline=None, phases=PHASES, max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def made(one: Any, count: int = 1) -> Any:
    """Return a strategy of so many engines with labels 0, 1, ..."""
    return st.tuples(*[one] * count).map(
        lambda found: Made(*(replace(engine, engine=str(at)) for at, engine in enumerate(found)))
    )


@patient
@given(made(engines()))
@example(Made(Engine("h:1", "0")))
def test_one_engine_adds_up(found: Made):
    judge(found)


@settings(patient, max_examples=30)
@given(made(engines(), 2) | made(engines(), 3))
def test_a_fleet_adds_up(found: Made):
    judged = judge(found, restarts=1)
    assert [engine.engine for engine in judged.engines] == [engine.engine for engine in found.engines]


@settings(patient, max_examples=20)
@given(made(engines(whole=False)))
def test_texts_without_a_clock_add_up(found: Made):
    judge(found)


def judge(found: Made, restarts: int = 0) -> Attribution:
    judged = attribute(Window(1.8e9, 1.8e9 + 60, found.engines, restarts=restarts))
    check(judged)
    check_reports(judged)
    return judged


def test_nothing_is_undetermined():
    found = attribute(Window(None, None, ()))
    check(found)
    check_reports(found)
    assert {target.verdict for target in found.targets.values()} == {"undetermined"}
    assert {len(target.parts) for target in found.targets.values()} == {0}
    assert len(CHAIN) == 11


def steady(intervals: int = 40, *, timed: bool = True, without: tuple[str, ...] = (), **means: float) -> Engine:
    """Return an engine in which a request finishes every second, of these mean seconds; `without`: what is not exposed."""
    one = np.ones(intervals)
    row: dict[str, Any] = {name: np.full(intervals, np.nan) for name in COLUMNS["interval"]}
    row |= {
        "ts": 1.8e9 + np.cumsum(one),
        "dt_s": one,
        "timed": one > 0 if timed else one < 0,
        "restarted": one < 0,
        "epoch": 0 * one,
    }
    seconds = {"ttft": 0.3, "queue": 0.1, "prefill": 0.15, "decode": 1.0, "e2e": 1.4} | means
    for stage, mean in seconds.items():
        row |= {f"{stage}_n": one, f"{stage}_s": mean * one}
    counts = {"prompt_tokens": 500, "computed_tokens": 500, "request_prompt_tokens": 500, "request_prompt_n": 1, "step_n": 100}
    counts |= {"generation_tokens": 100, "request_output_tokens": 100, "itl_n": 99, "itl_s": 1.0, "preemptions": 0}
    row |= {name: value * one for name, value in counts.items()}
    row |= {"running": 1.25 * one, "running_before": 1.25 * one, "waiting": 0.1 * one, "waiting_before": 0.1 * one}
    row |= {"kv_usage_ratio": 0.1 * one, "kv_usage_ratio_before": 0.1 * one}
    row |= dict.fromkeys(without, np.full(intervals, np.nan))
    total = {name: float(np.nansum(row[name])) for name in COUNTERS if np.isfinite(row[name]).any()}
    tables = {view: nothing(view) for view in ("scrape", "stat", "step", "request")}
    return Engine("h:1", "0", interval=row, total=total, **tables)


def judged(engine: Engine) -> Attribution:
    return judge(Made(engine))


def test_an_ordinary_engine_is_judged():
    found = judged(steady())
    assert found.targets["e2e"].measured_s == pytest.approx(1.4)
    assert found.targets["tpot"].measured_s == pytest.approx(1 / 99)


@pytest.mark.parametrize("requests", [1, 4])
def test_a_handful_of_requests_is_not_judged(requests: int):
    found = judged(steady(requests, queue=5.0, ttft=5.2, e2e=6.4))
    assert found.finished == requests
    assert {target.verdict for target in found.targets.values()} == {"undetermined"}


@pytest.mark.parametrize(
    "without",
    [
        ("ttft_s", "ttft_n"),
        ("request_output_tokens",),
        ("itl_s", "itl_n"),
        ("step_n", "step_tokens"),
        ("computed_tokens", "local_hit_tokens", "external_hit_tokens"),
        ("preemptions",),
        ("kv_usage_ratio", "kv_usage_ratio_before"),
        ("waiting", "waiting_before", "running", "running_before"),
        tuple(sorted(set(COUNTERS) - NEEDED)),
    ],
)
def test_what_is_not_exposed_is_no_error(without: tuple[str, ...]):
    assert judged(steady(without=without)).targets["e2e"].measured_s == pytest.approx(1.4)


def one_token(*, without: tuple[str, ...] = ()) -> Engine:
    """Return an engine whose requests end with their first token."""
    engine = steady(decode=0.0, e2e=0.4, itl_s=0.0, without=without)
    one = np.ones(40)
    tokens = {"generation_tokens": one, "request_output_tokens": one, "itl_n": 0 * one}
    return replace(
        engine, interval={**engine.interval, **tokens}, total={**engine.total, **{k: v.sum() for k, v in tokens.items()}}
    )


def test_requests_of_one_token_have_no_decode():
    found = judged(one_token()).targets
    assert found["e2e"].measured_s == pytest.approx(0.4)
    assert (found["tpot"].measured_s, found["tpot"].verdict) == (None, "undetermined")


def test_requests_of_one_token_without_ttft_are_judged():
    engine = one_token(without=("ttft_s", "ttft_n"))
    n = np.arange(40.0) % 7 + 3  # steps of 20 ms, so that costs can be fitted
    fitted = {"step_n": n, "dt_s": n / 50, "computed_tokens": 500 * (np.arange(40.0) % 3)}
    engine = replace(engine, interval={**engine.interval, **fitted}, total={**engine.total, "step_n": n.sum()})
    assert judged(engine).targets["e2e"].measured_s == pytest.approx(0.4)


@pytest.mark.parametrize("missing", ["e2e", "queue", "prefill", "decode"])
def test_without_a_stage_no_seconds_are_invented(missing: str):
    found = judged(steady(without=(f"{missing}_s", f"{missing}_n")))
    assert {target.measured_s for target in found.targets.values()} == {None}
    assert "healthy" not in {target.verdict for target in found.targets.values()}


def test_more_blocks_stored_again_than_prompts_computed_fill_no_stage_twice():
    engine = steady(queue=10.0, ttft=10.2, e2e=11.3)
    one = np.ones(40)
    hits = {"computed_tokens": 5 * one, "local_hit_tokens": 495 * one, "external_hit_tokens": 0 * one}
    waiting = {"waiting": 10 * one, "waiting_before": 10 * one}
    counts = {"stored_blocks": 5000.0, "distinct_blocks": 4000.0, "again_blocks": 5000.0, "elsewhere_blocks": 10.0}
    total = {**engine.total, **{name: float(values.sum()) for name, values in hits.items()}}
    kv_events = {**counts, "block_size": 16.0, "gaps": 0.0, "salts": 0.0}
    interval = {**engine.interval, **hits, **waiting}
    judged(replace(engine, interval=interval, total=total, kv=kv_events, facts={"max_num_seqs": 256}))


def test_unknown_lengths_are_unknown_seconds():
    engine = steady(
        without=("prompt_tokens", "generation_tokens", "request_prompt_tokens", "request_prompt_n", "computed_tokens")
    )
    found = judged(engine)
    assert all(part.seconds is None or math.isfinite(part.seconds) for target in found.targets.values() for part in target.parts)


@pytest.mark.parametrize("engine", [steady(timed=False), steady(without=("running", "running_before"))])
def test_no_sentence_holds_a_number_that_is_none(engine: Engine):
    found = judged(engine)
    for target in TARGETS:
        assert " nan" not in text_report.render(Incident("0", (), found), target).lower()


def test_what_cannot_be_explained_is_not_healthy():
    found = judged(steady(without=("step_n", "step_tokens")))
    assert found.targets["e2e"].unexplained_s > 0.5 * found.targets["e2e"].measured_s
    assert {found.targets[name].verdict for name in ("e2e", "tpot")} == {"undetermined"}
