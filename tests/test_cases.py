"""Logs as users paste them: what is read out of them, what is said about them, and what must not be said.

The expectations are those of the public cases (tests/data/cases/README.md); figures with "about" have a tolerance there.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from recordings import DATA, finished, judged, loaded, scrapes, series

from analyzers.compare import compare
from app.pipeline import window_of
from app.reports import compare as compare_report
from app.reports import json as json_report
from app.reports import text as text_report


@dataclass(frozen=True)
class Case:
    """What a right tool says of some files: the limiting link of each target ("?": undetermined, None: healthy), phrases, figures."""

    files: tuple[str, ...]
    limiting: dict[str, str | None]
    says: tuple[str, ...]
    never: tuple[str, ...]  # patterns, whatever the case of their letters
    stats: dict[str, list[Any]]  # columns of the stats lines in order

    def paths(self) -> tuple[Path, ...]:
        return tuple(next((DATA / "cases").glob(name)) for name in self.files)


ALL: Final = ("ttft", "tpot", "e2e")
HEALTHY: Final = r"nothing limits|nothing waits \(|healthy"
CASES: Final = {
    "01": Case(
        ("01-*/server.log",),
        {"ttft": "kv_eviction", "tpot": "?", "e2e": "kv_eviction"},
        (
            "SWAP preemption lines (not enough KV cache space) with 98 waiting",
            "KV use rose 12.3 points in 5 s, which fills the pool in about 6 s",
            "cumulative counter is cut off: it is not read",
            "7154 to 7220 tokens/s from 2 running: each group holds many sequences (n > 1), so the batch is not small",
        ),
        (HEALTHY, r"prefill backlog", r"prefix (miss|cache|hit)", r"\b[01] preemptions?\b", r"hang|hung|stuck", r"rejected"),
        {
            "running": [2, 2],
            "waiting": [98, 98],
            "kv_usage_ratio": [0.738, 0.861],
            "generation_tokens_per_s": [7220.5, 7154.5],
            "prompt_tokens_per_s": [0, 0],
        },
    ),
    "04": Case(
        ("04-*/server.log",),
        dict.fromkeys(ALL, "prefill_backlog"),
        (
            "prompt throughput stands at 23999 tokens/s with up to 90 waiting and KV blocks free",
            "running grows and waiting falls by 0.6 requests/s, which is about 39999 prompt tokens a request",
            "the queue is empty in about 110 s",
            "KV blocks fill by 11.5 points in 10 s and are all used in about 30 s: expect KV pressure next",
        ),
        (HEALTHY, r"kv eviction limits", r"prefix (miss|cache|hit)", r"hit rate", r"decode (is|was|steps).*slow", r"rejected"),
        {
            "running": [10, 16, 22, 28, 34],
            "waiting": [90, 84, 78, 72, 66],
            "kv_usage_ratio": [0.193, 0.309, 0.425, 0.542, 0.654],
            "generation_tokens_per_s": [18.1, 35.4, 52.6, 69.6, 83.7],
            "prompt_tokens_per_s": [23998.2, 23999.9, 23999.8, 23998.3, 24000.7],
        },
    ),
    "05": Case(
        ("05-*/server.log",),
        {"ttft": "prefix_cache_miss", "tpot": "?", "e2e": "prefix_cache_miss"},
        (
            "hit rate 0.0 to 0.2 % in the last 4 stats lines (a moving figure over the last 1000 requests)",
            "something early in the prompt changes with each request",
            "the cache block is larger than the shared prefix",
            "why 1 wait with 4 running and KV use 70.8 to 71.2 %: the next prompt does not fit, or a limit stops it",
            "--max-num-seqs and the KV cache size in tokens",
            "a running request gets 17.2 tokens/s, constant over 5 lines",
            "no stats line for 740 s",
        ),
        (HEALTHY, r"kv eviction", r"exhaust", r"slow", r"hit rate fell", r"count_tokens", r"[45] turns", r"rejected"),
        {
            "prefix_hit_ratio": [0.083, 0.066, 0.014, 0.0, 0.0, 0.002, 0.002],
            "running": [4, 4, 4, 4, 4, 8, 6],
            "waiting": [1, 1, 1, 1, 1, 0, 0],
            "kv_usage_ratio": [0.708, 0.708, 0.708, 0.708, 0.712, 0.188, 0.166],
            "generation_tokens_per_s": [68.8] * 5 + [100.4, 140.2],
        },
    ),
    "06": Case(
        ("06-*/command.txt", "06-*/metrics_t0.prom", "06-*/metrics_t60.prom", "06-*/requests.jsonl"),
        {"ttft": "frontend", "tpot": "?", "e2e": "frontend"},
        (
            "clients wait 37.5 s for a first token, the engine accounts for 1.23 s (queue 0.017, prefill 1.10)",
            "36.3 s pass before its arrival stamp, where requests are rendered (images, templates) and tokenized in the API server",
            "72 requests are in flight, of which the scheduler knows 6 to 9",
            "2 scrapes: running 6 to 9, waiting 0, KV use 6.1 to 8.8 %",
            "the TTFT that the server exports is not what clients see",
        ),
        (HEALTHY, r"no pressure", r"moe|expert", r"kernel", r"gpu-memory-utilization", r"max-num-seqs", r"rejected"),
        {},
    ),
    "07": Case(
        ("07-*/baseline.log", "07-*/mtp.log"),
        {"ttft": "kv_eviction", "tpot": "?", "e2e": "kv_eviction"},
        (
            "2.51 to 2.58 tokens a step and sequence, 76 to 79 % of the drafts accepted",
            "a running request gets at best 68.1 -> 113.5 tokens/s: each is faster",
            "9 requests fit where 18 did at the same KV use: KV capacity limits both",
            "mtp.log: 1 of 5 lines rejected",
        ),
        (HEALTHY, r"low acceptance", r"speculation limits", r"prefix (miss|cache|hit)", r"slower", r"77\.\d %"),
        {
            "running": [18, 18, 18, 21, 20, 9, 9],
            "waiting": [43, 42, 33, 23, 23, 56, 55],
            "kv_usage_ratio": [0.959, 0.955, 0.877, 0.959, 0.984, 0.942, 0.965],
            "generation_tokens_per_s": [1055.3, 1226.3, 734.9, 589.8, 1242.7, 929.6, 1021.1],
        },
    ),
    "09": Case(
        ("09-*/decode.log",),
        dict.fromkeys(ALL, "?"),
        (
            "1 transfer of 70 MB took 9.9 ms, 58 % of it posting descriptors (5.7 ms, 56 each)",
            "a single sample is too little to name a limit: it matters only against TTFT, which is not in these files",
        ),
        (HEALTHY, r"(?<!what) limits (ttft|tpot|e2e)", r"7\.1|7097|GB/s", r"p90", r"bottleneck", r"rejected"),
        {},
    ),
    "11": Case(
        ("11-*/bench.txt",),
        dict.fromkeys(ALL, "?"),
        (
            "4.0 requests/s were offered and 2.11 served, so the queue grew for the whole 250 s of sending",
            "predicts a mean wait of about 112 s, in line with the mean TTFT of 100.6 s; TTFT here measures overload",
            "which stage caps the 2.11 requests/s that were served",
        ),
        (HEALTHY, r"(?<!what) limits (ttft|tpot|e2e)", r'prefill(?!":)', r"regression", r"\bITL\b", r"rejected"),
        {},
    ),
    "02": Case(
        ("02-*/server.log",),
        {"ttft": "kv_eviction", "tpot": "?", "e2e": "kv_eviction"},
        (
            "KV blocks limit admission: use 97.5 to 99.7 % with 18 to 63 waiting and 26 to 34 running",
            "running 26 to 39, waiting 0 to 63",
            "resumed (preempted) requests count as hits",
            "preemption is inferred",
            "vllm:num_preemptions_total",
        ),
        (
            HEALTHY,
            r"hit rate.*(improv|good)",
            r"prefill backlog limits",
            r"prefill.bound",
            r"leak",
            r"rejected",
            r"2025-10-14",
            r"T17:",
        ),
        {
            "running": [39, 34, 33, 27, 26, 26],
            "waiting": [0, 18, 40, 62, 63, 63],
            "kv_usage_ratio": [0.758, 0.992, 0.975, 0.997, 0.979, 0.986],
            "generation_tokens_per_s": [834.0, 756.7, 736.1, 569.6, 605.4, 543.4],
            "prompt_tokens_per_s": [1479.5, 0, 0, 0, 0, 0],
            "prefix_hit_ratio": [0.424, 0.432, 0.435, 0.463, 0.466, 0.470],
        },
    ),
    "03-all-ranks": Case(
        ("03-*/server_all_ranks.log", "03-*/command.txt"),
        {"ttft": "kv_eviction", "tpot": "?", "e2e": "kv_eviction"},
        (
            "2 of 8 engines (0, 1) hold 225 of 225 waiting requests",
            "engine 0: KV blocks limit admission: use 100.0 % with 117 waiting and 51 running, below max_num_seqs (64)",
            "engine 1: KV blocks limit admission: use 98.6 % with 108 waiting and 31 running, below max_num_seqs (64)",
        ),
        (HEALTHY, r"slots limits", r"moe", r"expert", r"--max-num-seqs up", r"rejected"),
        {"waiting": [117, 108, 0, 0, 0, 0, 0, 0], "running": [51, 31, 24, 22, 27, 20, 25, 23]},
    ),
    "03-truncated": Case(
        ("03-*/server_truncated.log",),
        {"ttft": "kv_eviction", "tpot": "?", "e2e": "kv_eviction"},
        (
            "engine 0: KV blocks limit admission: use 100.0 % with 117 waiting and 51 running",
            "engine 1: KV blocks limit admission: use 98.6 % with 108 waiting and 31 running",
            "server_truncated.log: 1 of 3 lines rejected (first: line 3:",
        ),
        (HEALTHY, r"slots limits", r"engine (00)?2", r"of 8", r"moe", r"--max-num-seqs up"),
        {
            "engine": ["0", "1"],
            "waiting": [117, 108],
            "running": [51, 31],
            "kv_usage_ratio": [1.0, 0.986],
            "generation_tokens_per_s": [1157.2, 809.3],
            "prefix_hit_ratio": [0.70, 0.66],
            "mm_hit_ratio": [0.0, 0.0],
        },
    ),
    "03-truncated-with-command": Case(
        ("03-*/server_truncated.log", "03-*/command.txt"),
        {"ttft": "kv_eviction", "tpot": "?", "e2e": "kv_eviction"},
        (
            "imbalance between engines: 2 of 8 are visible. Measure: the stats lines or /metrics of all engines",
            "below max_num_seqs (64)",
        ),
        (HEALTHY, r"slots limits", r"engine (00)?2", r"of 8 engines", r"moe"),
        {"engine": ["0", "1"]},
    ),
    "08": Case(
        ("08-*/server.log",),
        dict.fromkeys(ALL, "prefill_backlog"),
        (
            "a long prefill starves decode: generation fell to 0.9 tokens/s with 2 running and was 20.4 after",
            "74087 prompt tokens are credited in the interval that ends then",
            "0.0 tokens/s of prompts does not mean that none was running",
            "--max-num-batched-tokens down",
        ),
        (HEALTHY, r"speculation (limits|is failing)", r"kv eviction limits", r"prefix miss limits", r"slots limits", r"queue"),
        {
            "generation_tokens_per_s": [0.9, 20.4],
            "prompt_tokens_per_s": [0.0, 7408.7],
            "running": [2, 2],
            "waiting": [0, 0],
            "kv_usage_ratio": [0.637, 0.640],
            "prefix_hit_ratio": [0.851, 0.851],
        },
    ),
    "10": Case(
        ("10-*/server.log",),
        dict.fromkeys(ALL, "?"),
        (
            "may be over layers, not ranks: they do not measure imbalance",
            "no pressure is seen: nothing waits and KV blocks are free",
            "running 64, waiting 0, KV use 38.2 %",
            "per-rank loads",
        ),
        (r"(?<!what) limits (ttft|tpot|e2e)", r"1\.93", r"0\.517", r"hottest", r"busiest rank \d", r"redundant"),
        {"running": [64], "waiting": [0], "kv_usage_ratio": [0.382]},
    ),
    "12": Case(
        ("12-*/server.log",),
        dict.fromkeys(ALL, None),
        (
            "nothing is stuck: one request decodes steadily",
            "latency is output length",
            "max_tokens or the thinking budget",
            "KV use rises with the",
        ),
        (r"hang|hung|dead.?lock", r"leak", r"(?<!what) limits (ttft|tpot|e2e)", r"backlog", r"rejected"),
        {
            "generation_tokens_per_s": [158.0, 181.0, 180.3, 178.2],
            "running": [1] * 4,
            "waiting": [0] * 4,
            "kv_usage_ratio": [0.003, 0.006, 0.008, 0.010],
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_verdict(name: str):
    case = CASES[name]
    document = json_report.document(judged(*case.paths()))
    said = {key: "?" if t["verdict"] == "undetermined" else t["limiting"] for key, t in document["targets"].items()}
    assert said == case.limiting
    assert document["source"]["level"] == "state"
    for target in document["targets"].values():
        assert target["measured_s"] is None
        assert all(part["seconds"] is None for part in target["parts"])


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_and_what_is_not(name: str):
    case = CASES[name]
    incident = judged(*case.paths())
    texts = [text_report.render(incident, target) for target in (None, *ALL)]
    for phrase in case.says:
        assert phrase in texts[0]
    for text in [*texts, json_report.render(incident)]:
        wrong = [pattern for pattern in case.never if re.search(pattern, without_measures(text), re.IGNORECASE)]
        assert not wrong, text


def without_measures(text: str) -> str:
    """Leave out what is only advice on measuring, keys of JSON, and names of links that have no seconds."""
    text = re.sub(r'Measure: .*|"measure": .*|"(rejected|link|runner_up|load|queue)": .*|"reasons": \[[^]]*\]', "", text)
    return re.sub(r"What to try.*", "", text) if "limits" not in text else text


@pytest.mark.parametrize("name", CASES)
def test_the_figures(name: str):
    case = CASES[name]
    store, _ = loaded(*case.paths())
    for column, expected in case.stats.items():
        found = [row[0] for row in store.rows(f"SELECT {column} FROM stat_row ORDER BY ts, line")]
        assert found == (expected if column == "engine" else pytest.approx(expected)), column


@pytest.mark.parametrize("name", CASES)
def test_the_whole_text(name: str, golden: Callable[[str, str], None]):
    golden(f"cases/{name}.txt", text_report.render(judged(*CASES[name].paths())))


def test_two_clocks_are_one_event():
    """Case 02: the container's stamps are 7 hours off the log's; each record is wrapped in the middle of a word."""
    store, results = loaded(*CASES["02"].paths())
    assert store.rows("SELECT clock_offset_s FROM source_file") == [(pytest.approx(7 * 3600, abs=1),)]
    first = datetime.fromtimestamp(store.rows("SELECT min(ts) FROM stat")[0][0], UTC)
    assert first.isoformat(timespec="seconds") == "2025-10-15T00:00:48+00:00"
    assert [result.rejected for result in results] == [0]
    calls = store.rows("SELECT json_extract(fields, '$.count')::BIGINT FROM event WHERE kind = 'access' AND fields LIKE '%chat%'")
    assert sum(row[0] for row in calls) == 6


def test_ranks_are_judged_one_by_one():
    """Case 03: two hot ranks of eight do not vanish in a mean."""
    document = json_report.document(judged(*CASES["03-all-ranks"].paths()))
    limited = {engine["engine"]: engine["targets"]["ttft"]["limiting"] for engine in document["engines"]}
    assert limited == {"0": "kv_eviction", "1": "kv_eviction"} | {str(rank): None for rank in range(2, 8)}


def test_a_cut_record_gives_no_figures():
    """Case 03, truncated: nothing is known of engine 2."""
    store, _ = loaded(*CASES["03-truncated"].paths())
    assert {engine.engine for engine in judged(*CASES["03-truncated"].paths()).attribution.engines} == {"0", "1"}
    assert store.rows("SELECT count(*) FROM stat WHERE engine = '2'") == [(0,)]


def test_drafts_that_are_all_accepted_are_no_fault():
    """Case 08: mean acceptance length 3.00, 3.00, 1.95."""
    store, _ = loaded(*CASES["08"].paths())
    found = store.rows(
        "SELECT json_extract(fields, '$.acceptance_length')::DOUBLE FROM event WHERE kind = 'spec_decode' ORDER BY line"
    )
    assert [row[0] for row in found] == [3.0, 3.0, 1.95]


def test_the_balancedness_of_this_version_is_read_and_refused():
    """Case 10: logged 0.517 over the wrong axis, where 0.876 is right."""
    store, _ = loaded(*CASES["10"].paths())
    found = store.rows(
        "SELECT json_extract(fields, '$.balancedness')::DOUBLE, json_extract(fields, '$.avg_tokens')::DOUBLE, "
        "json_extract(fields, '$.max_tokens')::DOUBLE FROM event WHERE kind = 'eplb' ORDER BY line"
    )
    assert found == [(0.517, 42342.3, 81900), (0.517, 42290.61, 81800)]


def test_the_seconds_a_token_are_about_right():
    """Case 12: about 5.6 ms; a CRLF file."""
    text = text_report.render(judged(*CASES["12"].paths()))
    (said,) = re.findall(r"\((\d+\.\d) ms a token each\)", text)
    assert float(said) == pytest.approx(5.6, rel=0.05)


def test_a_preemption_whose_counter_is_cut_off_has_no_count():
    """Case 01."""
    store, _ = loaded(*CASES["01"].paths())
    assert store.rows("SELECT fields FROM event WHERE kind = 'preempted_v0'") == [('{"count": null, "mode": "SWAP"}',)]


def test_calls_that_count_tokens_are_no_generations():
    """Case 05."""
    store, _ = loaded(*CASES["05"].paths())
    calls = store.rows(
        "SELECT json_extract_string(fields, '$.path'), json_extract(fields, '$.count')::BIGINT FROM event WHERE kind = 'access' ORDER BY 1"
    )
    assert calls == [("/v1/messages", 1), ("/v1/messages/count_tokens", 4)]


def test_requests_on_a_clock_of_their_own_have_no_time():
    """Case 06: start_s counts from the start of the client."""
    store, _ = loaded(*CASES["06"].paths())
    found = store.rows("SELECT count(*), count(arrival_ts), avg(ttft_s), sum(output_tokens) FROM request")
    assert found == [(12, 0, pytest.approx(37.5, rel=0.01), 4223)]


def test_the_second_log_against_the_first():
    """Case 07: `weaklink compare baseline.log mtp.log`; drafts of the cut record have no rate."""
    windows = [window_of(loaded(path)[0]) for path in CASES["07"].paths()]
    text = compare_report.render(compare(*windows))
    for phrase in CASES["07"].says[:3]:
        assert phrase in text
    assert not [pattern for pattern in CASES["07"].never if re.search(pattern, text, re.IGNORECASE)]
    drafts = loaded(CASES["07"].paths()[1])[0].rows("SELECT fields FROM event WHERE kind = 'spec_decode' ORDER BY line")
    found = [json.loads(fields) for (fields,) in drafts]
    assert [d["acceptance_length"] for d in found] == [2.51, 2.58, 2.54]
    assert [d["draft_acceptance_ratio"] for d in found] == [0.756, 0.789, None]
    assert [(d["accepted_tokens"], d["drafted_tokens"]) for d in found] == [(5355, 7088), (5692, 7214), (6198, 8030)]


def test_the_figures_of_one_transfer():
    """Case 09."""
    store, _ = loaded(*CASES["09"].paths())
    ((fields,),) = store.rows("SELECT fields FROM event WHERE kind = 'kv_transfer'")
    found = json.loads(fields)
    assert (found["Num successful transfers"], found["Avg xfer time (ms)"], found["Avg post time (ms)"]) == (1, 9.862, 5.693)
    assert (found["Avg MB per transfer"], found["Throughput (MB/s)"], found["Avg number of descriptors"]) == (70, 7097.952, 56)
    assert found["Avg post time (ms)"] / found["Avg xfer time (ms)"] == pytest.approx(0.577, abs=0.001)


def test_the_figures_of_a_printed_benchmark():
    """Case 11: 1024 tokens in and 119.55 out a request; nothing is known of ITL."""
    store, _ = loaded(*CASES["11"].paths())
    ((fields,),) = store.rows("SELECT fields FROM event WHERE kind = 'bench'")
    run = json.loads(fields)
    assert (run["completed"], run["duration"], run["request_rate"], run["request_throughput"]) == (1000, 473.62, 4.0, 2.11)
    assert (run["total_input_tokens"] / 1000, run["total_output_tokens"] / 1000) == (1024, 119.55)
    assert (run["mean_ttft_ms"], run["median_ttft_ms"], run["p99_ttft_ms"]) == (100636.33, 103588.53, 197277.97)
    assert run["mean_tpot_ms"] == 177.82
    assert not [name for name in run if "itl" in name]


# -- texts without a time (case 06) ------------------------------------------------------------------------------------

T0, T60 = (next((DATA / "cases").glob(f"06-*/metrics_{name}.prom")) for name in ("t0", "t60"))


def test_what_was_measured_is_kept_although_the_e2e_histogram_is_missing():
    """Case 06: 12 requests with TTFT 1.23 s, queue 0.017 s and prefill 1.10 s, and no vllm:e2e_request_latency_seconds."""
    document = json_report.document(judged(*CASES["06"].paths()))
    stages = document["targets"]["ttft"]["stages"]
    assert stages == {"frontend": pytest.approx(0.117, abs=0.001), "queue": pytest.approx(0.0167, abs=0.0001), "prefill": pytest.approx(1.1)}
    assert document["targets"]["e2e"]["stages"]["output"] is None
    measures = [one["measure"] for one in document["targets"]["tpot"]["cannot_determine"]]
    assert any("vllm:e2e_request_latency_seconds" in measure for measure in measures)
    assert not any("two scrapes" in measure for measure in measures)


def test_one_text_is_a_state_and_never_healthy():
    incident = judged(T0)
    document = json_report.document(incident)
    assert {target["verdict"] for target in document["targets"].values()} == {"undetermined"}
    assert document["window"]["start"] is None
    text = text_report.render(incident)
    assert "running 6, waiting 0, KV use 6.1 %" in text
    assert "no clock in the recording" in text


@pytest.mark.parametrize("paths", [(T0, T60), (T60, T0)])
def test_two_texts_are_a_window_whatever_their_order(paths: tuple[Path, ...]):
    """TTFT 1.23 s, of which queue 0.017 and prefill 1.1, over 12 requests; 156,000 prompt tokens."""
    store, _ = loaded(*paths)
    ((n, ttft, queue, prefill, prompt, generated, running, preempted),) = store.rows(
        "SELECT ttft_n, ttft_s / ttft_n, queue_s / queue_n, prefill_s / prefill_n, prompt_tokens, generation_tokens, running, preemptions "
        "FROM interval_row"
    )
    assert (n, prompt, generated, running, preempted) == (12, 60 * 2600, 4223, 9, 0)
    assert (ttft, queue, prefill) == pytest.approx((1.23, 0.017, 1.1), rel=0.03)
    assert "healthy" not in {target.verdict for target in judged(*paths).attribution.targets.values()}
    assert judged(*paths).attribution.restarts == 0


def test_a_window_in_which_nothing_finished_is_said_so(tmp_path):
    """TTFT is there, the E2E histogram too, but it counted nothing."""
    first = {**finished(0), series("num_requests_running"): 1}
    second = {name: value if "time_to_first" in name else 0 for name, value in finished(3, ttft=0.5).items()}
    scrapes(tmp_path / "m.jsonl", [(0, first), (10, {**second, series("num_requests_running"): 3})])
    document = json_report.document(judged(tmp_path))
    measures = [one["measure"] for one in document["targets"]["e2e"]["cannot_determine"]]
    assert "a window in which requests finish: in this one none did" in measures
