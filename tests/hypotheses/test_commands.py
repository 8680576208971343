"""The verbs: hypotheses, workload, capacity, plan and experiment, on recordings and from end to end with a store."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from recordings import DATA, INCIDENTS, NOON, finished, loaded, scrapes
from typer.testing import CliRunner

from analyzers.hypotheses import HYPOTHESES
from analyzers.model import TARGETS
from analyzers.twin import Setup
from app.cli import app
from app.experiments import table, words
from app.experiments.cases import NAMES, case_for, hypotheses_for, judged, proposal
from app.experiments.cli import Generator
from app.experiments.load import LOADS
from app.experiments.plan import applied, script
from app.pipeline import window_of
from app.store import Store

from .scenes import H100, HEALTHY, case, seen
from .test_pairs import window

RUN: Final = CliRunner()
KEYS: Final = {"name", "change", "flags", "claim", "effect", "predicted_by", "costs", "confused_with", "conditions", "test", "undoes", "objectives"}  # fmt: skip


def said(*words_: object, status: int = 0) -> str:
    result = RUN.invoke(app, [str(word) for word in words_])
    assert result.exit_code == status, result.output
    return result.stdout


def found(*words_: object) -> Any:
    return json.loads(said(*words_, "--format", "json"))


# -- hypotheses -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("incident", "first"),
    [
        ("slots", {"ttft": "more_slots", "e2e": "more_slots", "throughput": "more_slots"}),
        ("kv_eviction", {"ttft": "kv_memory", "e2e": "kv_memory", "capacity": "kv_memory"}),
        ("frontend", {"ttft": "api_servers", "e2e": "api_servers"}),
        ("output", {"e2e": "api_servers"}),
        ("moe_imbalance", {"tpot": "eplb", "e2e": "eplb"}),
        ("healthy", dict.fromkeys(("ttft", "tpot", "e2e", "throughput", "capacity"))),
    ],
)
def test_the_first_change_of_an_incident(incident: str, first: dict[str, str | None]):
    made = case_for(window_of(loaded(INCIDENTS / incident)[0]))
    ranked = {objective: hypotheses_for(made, objective) for objective in first}
    assert {objective: each[0].name if each else None for objective, each in ranked.items()} == first
    for one in [one for each in ranked.values() for one in each]:
        document = words.hypothesis(one, made)
        json.dumps(document, allow_nan=False)
        assert set(document) == KEYS
        assert set(document["effect"]) == set(TARGETS)
        assert all(set(effect) == {"saves_s", "range_s"} for effect in document["effect"].values())
        assert document["costs"]
        assert document["test"].startswith("load: ")
        assert set(document["objectives"]) == {"throughput", "capacity"}


def test_nothing_on_a_healthy_server_and_it_says_why():
    assert found("hypotheses", INCIDENTS / "healthy", "--objective", "ttft") == []
    assert said("hypotheses", INCIDENTS / "healthy").strip() == "Nothing to recommend for e2e: nothing limits it."


def test_a_missed_objective_makes_load_a_limit():
    ranked = found("hypotheses", INCIDENTS / "healthy", "--objective", "tpot", "--slo", "tpot=0.004")
    assert {"speculative"} <= {one["name"] for one in ranked}
    given = found(
        "hypotheses", INCIDENTS / "healthy", "--objective", "tpot", "--slo", "tpot=0.004", "--given", "accepted_length=3"
    )
    assert given[0]["name"] == "speculative"
    assert given[0]["effect"]["tpot"]["saves_s"] > 0.001


def test_the_text_has_what_the_json_has():
    text, document = said("hypotheses", INCIDENTS / "output"), found("hypotheses", INCIDENTS / "output")
    assert document
    for at, one in enumerate(document, 1):
        assert f"{at}. {one['name']}: {one['change']}" in text
        assert all(flag in text for flag in one["flags"])
        assert one["test"] in text


# -- workload, capacity -----------------------------------------------------------------------------------------------------------
def test_a_workload_is_described():
    document = found("workload", INCIDENTS / "slots")
    assert document["prompt_tokens"]["mean"] == pytest.approx(755, rel=0.01)
    assert document["loop"] == "open"
    assert [o["name"] for o in document["objectives"]] == ["ttft", "tpot", "throughput", "capacity", "isolation"]
    assert document["says"] in said("workload", INCIDENTS / "slots")


def test_a_trace_is_described_with_the_hits_of_several_engines(tmp_path: Path):
    lines = [{"timestamp": 100 * k, "input_length": 1024, "output_length": 9, "hash_ids": [k % 7, 100 + k]} for k in range(200)]
    (tmp_path / "trace.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    document = found("workload", tmp_path / "trace.jsonl")
    assert document["rate_per_s"] == pytest.approx(10, rel=0.01)
    assert document["hit_ratio"] == pytest.approx(193 / 400)
    assert [one["engines"] for one in document["routing"]] == [1, 2, 4, 8]
    small = found("workload", tmp_path / "trace.jsonl", "--pool-tokens", 1024)
    assert small["routing"][0]["random_hit_ratio"] < document["routing"][0]["random_hit_ratio"]
    assert "8 engines" in said("workload", tmp_path / "trace.jsonl")
    (tmp_path / "trace.jsonl").write_text(json.dumps(lines[0]) + "\n{}\n")
    said("workload", tmp_path / "trace.jsonl", status=2)


def test_a_capacity_sheet_of_a_recording():
    document = found("capacity", INCIDENTS / "kv_eviction", "--context", 8000, "--concurrency", 60)
    assert document["fits"] is False
    assert document["contexts"] == pytest.approx(36_000 / 8000)
    first = document["options"][0]
    assert (first["name"], first["fits"]) == ("without the override", True)
    usual = said("capacity", INCIDENTS / "slots")
    assert re.match(r"55 contexts of 3\d\d\d tokens fit: the pool of 936,544 tokens holds", usual)
    assert "--tensor-parallel-size 2" in usual
    # two engines had 20 requests together; a pool is one engine's, and that had at most 10
    assert said("capacity", INCIDENTS / "prefix_cache_miss").startswith("10 contexts of ")


def test_a_capacity_sheet_of_a_model_that_does_not_run_yet(tmp_path: Path):
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    document = found("capacity", tmp_path / "config.json", "--gpu", "H100", "--context", 8000, "--concurrency", 40)
    assert document["memory"]["pool_tokens"] == pytest.approx(450_000, rel=0.05)
    assert document["fits"] is True
    said("capacity", tmp_path / "config.json", "--gpu", "H100", status=1)  # no requests: nothing to take a context from


# -- wrong arguments --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("hypotheses", "missing"), 2),
        (("hypotheses", "EMPTY"), 2),
        (("hypotheses", "INCIDENT", "--slo", "ttft=x"), 1),
        (("hypotheses", "INCIDENT", "--slo", "itl=1"), 1),
        (("hypotheses", "INCIDENT", "--given", "accepted_length=-1"), 1),
        (("hypotheses", "INCIDENT", "--given", "luck=1"), 1),
        (("plan", "INCIDENT", "--hypothesis", "magic"), 1),
        (("plan", "INCIDENT", "--hypothesis", "eplb"), 2),
        (("experiment", "judge", "INCIDENT", "INCIDENT", "--hypothesis", "magic"), 1),
        (("experiment", "start", "INCIDENT", "--hypothesis", "eplb"), 2),
        (("workload", "EMPTY"), 2),
        (("capacity", "EMPTY"), 2),
    ],
)
def test_wrong_arguments_end_with_a_status_and_a_sentence(arguments: tuple[str, ...], status: int, tmp_path: Path):
    (tmp_path / "empty.log").write_text("nothing of vLLM\n")
    places = {"EMPTY": str(tmp_path / "empty.log"), "INCIDENT": str(INCIDENTS / "output")}  # the smallest
    result = RUN.invoke(app, [places.get(word, word) for word in arguments])
    assert result.exit_code == status, result.output
    assert result.stderr.startswith("weaklink: ")


# -- experiments ------------------------------------------------------------------------------------------------------------------
def test_an_experiment_from_start_to_verdict(tmp_path: Path):
    store, before, after = tmp_path / "s.duckdb", tmp_path / "before", INCIDENTS / "healthy"
    shutil.copytree(INCIDENTS / "slots", before)
    fixed = DATA / "h200-0.24.0-slots-fixed"
    started = found("experiment", "start", before, "--hypothesis", "more_slots", "--store", store)
    assert started["experiment"] == 1
    waiting = found("experiment", "list", "--store", store)
    assert (waiting[0]["judgement"], waiting[0]["prediction"]["name"]) == (None, "more_slots")
    assert "waits for the recording after" in said("experiment", "list", "--store", store)
    document = found("experiment", "attach", 1, after, "--store", store)
    assert set(document["targets"]) == set(TARGETS)
    # the healthy recording is of another load: nothing is judged
    assert {one["verdict"] for one in document["targets"].values()} == {"inconclusive"}
    listed = found("experiment", "list", "--store", store)[0]
    assert listed["judgement"] == document
    assert listed["after"] == "healthy"
    again = found("experiment", "attach", 1, fixed, "--store", store)
    assert {target: one["verdict"] for target, one in again["targets"].items()} == dict.fromkeys(TARGETS, "confirmed")
    alone = found("experiment", "judge", before, fixed, "--hypothesis", "more_slots")
    assert alone == again
    assert "confirmed" in said("experiment", "judge", before, fixed)
    said("experiment", "attach", 2, after, "--store", store, status=1)
    shutil.rmtree(before)
    said("experiment", "attach", 1, after, "--store", store, status=1)
    said("experiment", "attach", 1, after, "--before", INCIDENTS / "slots", "--store", store)


def test_the_prediction_is_that_of_the_start(tmp_path: Path):
    """What is judged is what was kept, whatever the program would predict today."""
    fault, fixed = window("h200-0.24.0-slots"), window("h200-0.24.0-slots-fixed")
    made = case_for(fault)
    prediction = words.hypothesis(proposal(made, "more_slots"), made)
    prediction["effect"]["ttft"] = {"saves_s": 40.0, "range_s": [32.0, 48.0]}
    with Store(tmp_path / "s.duckdb") as store:
        number = table.start(store, prediction, "slots", None, now=NOON)
        row = table.one(store, number)
        document = words.judgement(judged(fault, fixed, row.hypothesis, table.kept(row.prediction)))
        table.finish(store, number, "slots-fixed", document, now=NOON + 60)
    with Store(tmp_path / "s.duckdb") as store:
        row = table.rows(store)[0]
    assert row.judgement["targets"]["ttft"]["verdict"] == "partly"
    assert row.judgement["targets"]["e2e"]["verdict"] == "confirmed"
    assert row.judgement["targets"]["ttft"]["predicted_s"] == 40.0
    assert table.kept(row.prediction).effect["ttft"].range_s == (32.0, 48.0)
    assert "TTFT partly" in words.experiments_text([row])


def test_a_hypothesis_that_does_not_apply_is_judged_without_a_prediction():
    slots, fixed = window("h200-0.24.0-slots"), window("h200-0.24.0-slots-fixed")
    result = judged(slots, fixed, "eplb")
    assert result.hypothesis is None
    assert any("does not apply" in c for c in result.conditions)
    assert {one.verdict for one in result.experiment.targets.values()} == {
        "inconclusive"
    }  # max_num_seqs is none of its arguments


def test_an_old_store_gets_the_table(tmp_path: Path):
    with Store(tmp_path / "s.duckdb") as store:
        store.execute("DROP TABLE experiment")
        store.execute("DROP SEQUENCE experiment_id_seq")
        store.execute("DELETE FROM migration WHERE name = '0003_experiments'")
    with Store(tmp_path / "s.duckdb") as store:
        assert table.rows(store) == []
    assert "No experiment yet" in said("experiment", "list", "--store", tmp_path / "s.duckdb")


# -- the script --------------------------------------------------------------------------------------------------------------------
def test_every_hypothesis_becomes_a_script_that_bash_reads():
    made = case(
        seen(replace_slots(), facts={**H100, "args": {"model": "m; rm -rf /", "max_num_seqs": 6, "served_model_name": ["a'b"]}})
    )
    written = 0
    for module in HYPOTHESES:
        one = module.propose(made)
        if one is None:
            continue
        text = script(made, one)
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert done.returncode == 0, f"{one.name}: {done.stderr}"
        assert "MODEL='m; rm -rf /'" in text
        written += 1
    assert written >= 5


@pytest.mark.parametrize("generator", list(Generator))
def test_each_generator_is_told_the_recorded_lengths_rate_and_sharing(generator: Generator):
    hostile = 'a\'b $(id) `id` "q"'
    made = case(seen(HEALTHY, facts={**H100, "args": {"model": "m", "served_model_name": [hostile]}}))
    text = LOADS[generator.value](made, hostile)
    done = subprocess.run(
        ["bash", "-c", f'{text.split()[0]}() {{ printf "%s\\n" "$@"; }}; HOST=h PORT=1 REQUESTS=7 MODEL=m; set -- side\n{text}'],
        text=True,
        capture_output=True,
        check=True,
    )
    told = done.stdout.split("\n")
    joined = " ".join(told)
    work = made.work
    assert work.prompt is not None
    assert work.output is not None
    assert hostile in joined  # nothing of the name was run by the shell
    prompt, output = round(work.prompt.mean), round(work.output.mean)
    shared = round(prompt * (work.hit_ratio or 0.0)) if (work.hit_ratio or 0.0) > 0.05 else 0
    numbers = {int(n) for n in re.findall(r"(?<![\w.])\d+(?![\w.])", joined)}
    assert {prompt - shared, output, 7} <= numbers
    assert f"{work.rate_per_s:.3g}" in re.findall(r"[\d.]+", joined) or work.loop == "closed"


def test_generators_of_the_command_are_those_there_are():
    assert {g.value for g in Generator} == set(LOADS)


def replace_slots() -> Setup:
    return replace(HEALTHY, slots=6)


@pytest.mark.parametrize(
    ("flags", "after", "by_hand"),
    [
        (("--max-num-seqs 64",), {"max_num_seqs": "64", "block_size": 16}, []),
        (("without --block-size",), {"max_num_seqs": 6}, []),
        (("--no-enable-prefix-caching",), {"max_num_seqs": 6, "block_size": 16, "enable_prefix_caching": False}, []),
        (("--enable-eplb", "--eplb-config '{\"step_interval\": 3000}'"), {"max_num_seqs": 6, "block_size": 16, "enable_eplb": True, "eplb_config": {"step_interval": 3000}}, []),
        (("a prefix-aware router in front",), {"max_num_seqs": 6, "block_size": 16}, ["a prefix-aware router in front"]),
    ],
)  # fmt: skip
def test_flags_are_put_into_the_command(flags: tuple[str, ...], after: dict[str, Any], by_hand: list[str]):
    assert applied({"max_num_seqs": 6, "block_size": 16}, flags) == (after, by_hand)


def test_a_json_argument_keeps_its_other_keys():
    before = {"eplb_config": {"window_size": 200, "step_interval": 1_000_000}}
    after, _ = applied(before, ("--eplb-config '{\"step_interval\": 3000}'",))
    assert after["eplb_config"] == {"window_size": 200, "step_interval": 3000}
    assert before["eplb_config"]["step_interval"] == 1_000_000


STUB: Final = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$(basename "$0") $1" in
  "vllm serve" | "weaklink record") trap 'exit 0' TERM; while :; do sleep 0.05; done ;;
esac
"""


BEGUN: Final = (
    'until grep -q "out $1-$2.zip" "$CALLS" && [ "$(grep -c "^vllm serve" "$CALLS")" = "$(grep -c "^weaklink record" "$CALLS")" ]; '
    "do sleep 0.05; done"
)


def test_the_script_runs_both_sides_and_judges(tmp_path: Path):
    """With programs that only write down how they were called."""
    text = (
        said("plan", INCIDENTS / "slots", "--hypothesis", "more_slots")
        .replace("sleep 5", BEGUN)  # else what was started in the background may be told to end before it has begun
        .replace("sleep 2", "sleep 0")
    )
    (tmp_path / "plan.sh").write_text(text)
    for name in ("vllm", "weaklink", "curl"):
        (tmp_path / name).write_text(STUB)
        (tmp_path / name).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "STARTS": "1",
        "REQUESTS": "7",
    }
    done = subprocess.run(["bash", "plan.sh"], cwd=tmp_path, env=env, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    serves = [call for call in calls if call.startswith("vllm serve")]
    assert [re.search(r"--max-num-seqs (\d+)", call)[1] for call in serves] == ["16", "64"]
    assert sum(call.startswith("vllm bench serve") for call in calls) == 2
    assert all("--num-prompts 7" in call for call in calls if call.startswith("vllm bench"))
    assert next(call for call in calls if call.startswith("weaklink record")).endswith("--out before-1.zip")
    assert calls[-1] == "weaklink experiment judge before-1.zip after-1.zip --hypothesis more_slots"


def test_a_recording_by_hand_is_enough_for_a_workload(tmp_path: Path):
    path = scrapes(
        tmp_path / "b" / "metrics.jsonl",
        [(t, finished(t, ttft=0.1, queue=0.01, prefill=0.08, decode=0.5, e2e=0.6)) for t in range(0, 60, 5)],
    )
    assert found("workload", path)["requests"] == 55
    assert found("hypotheses", path) == []


def test_the_verbs_know_every_hypothesis():
    assert tuple(module.NAME for module in HYPOTHESES) == NAMES
    code = "import sys, app.cli; print(*[m for m in sys.modules if m.startswith('analyzers.hypotheses')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()  # a command that needs none does not load them
