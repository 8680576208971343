"""Server logs of all versions through all transports: whole rows of each sample, the traps, and input that goes wrong."""

import gzip
import io
import itertools
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from collectors.formats.reading import HEAD, NOON, check_manifest, patient, refuses, sample, samples
from hypothesis import example, given
from hypothesis import strategies as st

from app.collectors.formats import MAX_REJECTED, vllm_log

Rows = dict[str, list[dict[str, Any]]]
GOOD: Final = {file.name: file.read_bytes() for file in samples(vllm_log, "good")}
FILES: Final = {f"{file.parent.name}-{file.stem}": file.read_bytes() for file in samples(vllm_log)}
STAT: Final = (
    b"(APIServer pid=7) INFO 11-29 12:00:%02d [loggers.py:310] Engine %03d: Avg prompt throughput: %.1f tokens/s, "
    b"Avg generation throughput: %.1f tokens/s, Running: %d reqs, Waiting: %d reqs, GPU KV cache usage: %.1f%%, "
    b"Prefix cache hit rate: %.1f%%"
)
LINE: Final = STAT % (0, 0, 512.3, 98.7, 12, 3, 41.2, 27.9)
STEP: Final = (
    b"Iteration(%d): %d context requests, %d context tokens, %d generation requests, %d generation tokens, "
    b"iteration elapsed time: %d.%02d ms"
)


def rows(data: bytes, *, block: int = vllm_log.BLOCK, reference: float = NOON) -> Rows:
    """Return the rows of each table in the order of the lines, None where unknown."""
    found: Rows = {}
    batches = list(vllm_log.read(io.BytesIO(data), reference, block=block))
    assert [batch.table for batch in batches].index("source_file") == len(batches) - 1
    for batch in batches:
        columns = {name: values.tolist() if isinstance(values, np.ndarray) else values for name, values in batch.columns.items()}
        assert len({len(values) for values in columns.values()}) == 1
        for row in zip(*columns.values(), strict=True):
            plain = [None if isinstance(value, float) and np.isnan(value) else value for value in row]
            found.setdefault(batch.table, []).append(dict(zip(columns, plain, strict=True)))
    for row in found.get("event", []):
        row["fields"] = json.loads(row["fields"])
    for table in set(found) - {"source_file"}:
        found[table].sort(key=lambda row: row["line"])
    return found


def told(found: Rows) -> dict[str, Any]:
    return found["source_file"][0]


def events(found: Rows, kind: str) -> list[dict[str, Any]]:
    return [row["fields"] for row in found.get("event", []) if row["kind"] == kind]


def column(found: Rows, name: str, table: str = "stat") -> list[Any]:
    return [row[name] for row in found[table]]


def shown(found: Rows) -> str:
    """Return rows for people: one a line, without what is unknown."""
    lines = []
    for table in ("stat", "step", "event", "rejected_line", "source_file"):
        for row in found.get(table, []):
            values = {name: value for name, value in row.items() if value is not None}
            if "ts" in values:
                values["ts"] = datetime.fromtimestamp(values["ts"], UTC).isoformat(timespec="milliseconds")[:-6]
            fields = values.pop("fields", None)
            said = [f"{name}={round(value, 6) if isinstance(value, float) else value}" for name, value in values.items()]
            lines.append(" ".join([table, *said, *([json.dumps(fields, sort_keys=True)] if fields is not None else [])]))
    return "\n".join(lines) + "\n"


# -- whole files ------------------------------------------------------------------------------------------------------


def test_an_empty_file_has_no_rows():
    assert rows(b"") == {
        "source_file": [{"lines": 0, "rejected": 0, "instance": None, "pid": None, "clock_offset_s": None}],
    }


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_sample_gives_its_rows(name: str, golden: Callable[[str, str], None]):
    golden(f"formats/vllm_log/{name}.txt", shown(rows(FILES[name])))


def test_the_manifest_names_every_sample():
    check_manifest(vllm_log)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_good_samples_are_ours(name: str):
    assert vllm_log.sniff(GOOD[name][:HEAD])


def test_other_formats_are_not_ours():
    assert not set(refuses(vllm_log)) - {"log", "JSON log"}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'# HELP vllm:num_requests_running x\nvllm:num_requests_running{engine="0"} 1.0\n',
        b'{"resourceSpans": []}\n',
        b'{"t": 1.5, "text": "INFO 11-29 12:00:00 [loggers.py:1] Engine 000: Avg"}\n',
        b"ts,line\n1," + LINE + b"\n",
        b'"1","' + LINE + b'"\n',
        b"(MainProcess pid=1) INFO 11-29 16:17:15 [utils.py:88] Sampling\n============ Serving Benchmark Result ============\n",
        b'INFO:     127.0.0.1:5 - "GET / HTTP/1.1" 200 OK\n',
    ],
)
def test_what_is_no_log_is_refused(text: bytes):
    assert not vllm_log.sniff(text)


# -- the public cases, to the figure ----------------------------------------------------------------------------------


def test_case_02_records_wrapped_inside_of_words_behind_a_clock_that_is_seven_hours_off():
    found = rows(sample(vllm_log, "good/case-02.log"))
    assert column(found, "running") == [39, 34, 33, 27, 26, 26]
    assert column(found, "waiting") == [0, 18, 40, 62, 63, 63]
    assert column(found, "kv_usage_ratio") == pytest.approx([0.758, 0.992, 0.975, 0.997, 0.979, 0.986], abs=1e-12)
    assert column(found, "generation_tokens_per_s") == [834.0, 756.7, 736.1, 569.6, 605.4, 543.4]
    assert column(found, "prompt_tokens_per_s") == [1479.5, 0, 0, 0, 0, 0]
    assert column(found, "prefix_hit_ratio") == pytest.approx([0.424, 0.432, 0.435, 0.463, 0.466, 0.470], abs=1e-12)
    assert column(found, "ts")[0] == pytest.approx(datetime(2025, 10, 15, 0, 0, 48, 753199, UTC).timestamp(), abs=1e-5)
    assert told(found)["clock_offset_s"] == pytest.approx(7 * 3600 + 0.76, abs=0.01)
    assert {event["path"]: event["count"] for event in events(found, "access")} == {"/metrics": 10, "/v1/chat/completions": 6}
    assert (told(found)["lines"], told(found)["rejected"], told(found)["pid"]) == (28, 0, "1")


def test_case_03_two_hot_ranks():
    found = rows(sample(vllm_log, "good/case-03-all.log"))
    assert column(found, "engine") == list("01234567")
    assert column(found, "waiting") == [117, 108, 0, 0, 0, 0, 0, 0]
    first, second = found["stat"][:2]
    assert (first["running"], first["kv_usage_ratio"], first["generation_tokens_per_s"]) == (51, 1.0, 1157.2)
    assert (first["prefix_hit_ratio"], first["mm_hit_ratio"], first["external_hit_ratio"]) == (0.7, 0.0, None)
    assert (second["running"], second["kv_usage_ratio"], second["generation_tokens_per_s"]) == (31, 0.986, 809.3)


def test_case_03_a_cut_record_gives_no_figure_of_its_engine():
    found = rows(sample(vllm_log, "bad/case-03-cut.log"))
    assert column(found, "engine") == ["0", "1"]
    assert [row["line"] for row in found["rejected_line"]] == [3]


def test_case_08_a_long_prefill_starves_decode():
    found = rows(sample(vllm_log, "good/case-08.log"))
    assert column(found, "generation_tokens_per_s") == [0.9, 20.4]
    assert column(found, "prompt_tokens_per_s") == [0.0, 7408.7]
    assert (column(found, "running"), column(found, "waiting")) == ([2, 2], [0, 0])
    assert column(found, "kv_usage_ratio") == [0.637, 0.64]
    assert column(found, "prefix_hit_ratio") == pytest.approx([0.851, 0.851], abs=1e-12)
    spec = events(found, "spec_decode")
    assert [event["acceptance_length"] for event in spec] == [3.0, 3.0, 1.95]
    assert [(event["accepted_tokens"], event["drafted_tokens"]) for event in spec] == [(2, 2), (6, 6), (99, 208)]
    assert spec[2]["position_ratios"] is None


def test_case_10_balancedness_as_logged():
    found = rows(sample(vllm_log, "good/case-10.log"))
    eplb = events(found, "eplb")
    assert [event["balancedness"] for event in eplb] == [0.517, 0.517]
    assert [event["avg_tokens"] for event in eplb] == [42342.3, 42290.61]
    assert [event["max_tokens"] for event in eplb] == [81900, 81800]
    assert [event["steps_left"] for event in eplb] == [2900, 2800]
    assert (column(found, "running"), column(found, "waiting"), column(found, "kv_usage_ratio")) == ([64], [0], [0.382])


def test_case_12_one_long_answer():
    found = rows(sample(vllm_log, "good/case-12.log"))
    assert column(found, "generation_tokens_per_s") == [158.0, 181.0, 180.3, 178.2]
    assert (column(found, "running"), column(found, "waiting")) == ([1] * 4, [0] * 4)
    assert column(found, "kv_usage_ratio") == [0.003, 0.006, 0.008, 0.01]
    assert column(found, "prompt_tokens_per_s")[0] * 10 == 1058.0


# -- traps ------------------------------------------------------------------------------------------------------------


def test_user_text_is_kept_nowhere():
    for name, data in FILES.items():
        text = str([list(batch.columns.values()) for batch in vllm_log.read(io.BytesIO(data), NOON)])
        for private in ("PRIVATE", "the user asked", "4041", "5854"):
            assert private not in text, name


def test_a_prompt_that_quotes_a_record_is_no_record():
    found = rows(b"INFO 11-29 12:00:00 [logger.py:42] Received request a: prompt: 'x " + LINE + b"', params: y\n")
    assert set(found) == {"event", "source_file"}
    assert events(found, "requests_logged") == [{"received": 1, "added": 0}]


def test_preemptions_in_a_stats_line_are_not_read():
    found = rows(LINE.replace(b"3 reqs, GPU", b"3 reqs, Preemptions: 9, GPU") + b"\n")
    assert 9 not in found["stat"][0].values()


def test_the_year_is_the_nearest_one():
    at = datetime(2026, 1, 10, tzinfo=UTC).timestamp()
    found = rows(LINE + b"\n", reference=at)
    assert column(found, "ts") == [datetime(2025, 11, 29, 12, tzinfo=UTC).timestamp()]
    monthly = b"\n".join(LINE.replace(b"11-29", b"%02d-15" % month) for month in [*range(1, 13), 1, 2]) + b"\n"
    found = rows(monthly, reference=datetime(2025, 1, 16, tzinfo=UTC).timestamp())
    years = [datetime.fromtimestamp(ts, UTC).year for ts in column(found, "ts")]
    assert years == [2025] * 12 + [2026] * 2


@pytest.mark.parametrize("reference", [0.0, -1.0, 1e18, float("inf"), float("nan")])
def test_no_reference_is_an_error(reference: float):
    assert len(rows(LINE + b"\n", reference=reference)["stat"]) == 1


@pytest.mark.parametrize("date", [b"02-30", b"13-01", b"00-10", b"11-00", b"999999999999999999-01"])
def test_a_date_that_does_not_exist_is_rejected(date: bytes):
    for count in (1, 20):  # by the pattern, by the table
        found = rows((LINE + b"\n") + (LINE.replace(b"11-29", date) + b"\n") * count)
        assert len(found["stat"]) == 1
        assert told(found)["rejected"] == count


def test_a_line_over_a_mebibyte_is_skipped():
    long = b"x" * (vllm_log.MAX_LINE + 1)
    for block in (1000, vllm_log.BLOCK, 1 << 22):
        found = rows(LINE + b"\n" + long + b"\n" + LINE + b"\n" + LINE + long + b"\n" + LINE, block=block)
        assert column(found, "line") == [1, 3, 5]
        assert [row["line"] for row in found["rejected_line"]] == [2, 4]


def test_a_damaged_archive_gives_what_stands_before_the_damage():
    lines = b"".join(STAT % (n % 60, 0, n, 1, 1, 0, 1, 1) + b"\n" for n in range(5000))
    broken = gzip.compress(lines)[:-4000]
    with gzip.open(io.BytesIO(broken)) as stream:
        batches = list(vllm_log.read(stream, NOON, block=1000))
    assert batches[-1].columns["rejected"][0] >= 1
    assert any(batch.table == "stat" for batch in batches)


def test_many_rejected_lines_are_counted_and_few_are_kept():
    found = rows((LINE[:150] + b"\n") * 500)
    assert told(found)["rejected"] == 500
    assert [row["line"] for row in found["rejected_line"]] == list(range(1, MAX_REJECTED + 1))


def test_paths_without_end_are_counted_together():
    names = [bytes([97 + n // 26 // 26, 97 + n // 26 % 26, 97 + n % 26]) for n in range(1100)]
    lines = [b'INFO:     127.0.0.1:5 - "GET /%b HTTP/1.1" 404 Not Found' % name for name in names]
    found = rows(b"\n".join(lines) + b"\n")
    counts = events(found, "access")
    assert len(counts) == vllm_log.PATHS + 1
    assert sum(event["count"] for event in counts) == 1100


def test_spec_lines_take_the_engine_of_the_stats_line_before_them_across_blocks():
    spec = b"(APIServer pid=7) INFO 11-29 12:00:00 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.00, "
    spec += b"Accepted: 1 tokens, Drafted: 2 tokens, Per-position acceptance rate: 0.500, Avg Draft acceptance rate: 50.0%"
    text = b"\n".join([spec, STAT % (0, 3, 1, 1, 1, 1, 1, 1), spec, STAT % (0, 1, 1, 1, 1, 1, 1, 1), spec]) + b"\n"
    for block in (1, 400, 1 << 20):
        assert [row["engine"] for row in rows(text, block=block)["event"]] == [None, "3", "1"]


# -- properties -------------------------------------------------------------------------------------------------------

NUMBER: Final = st.integers(0, 99_999)
SMALL: Final = st.integers(0, 999)
ITERATION: Final = st.tuples(st.integers(0, 7), st.integers(0, 10**9), NUMBER, NUMBER, NUMBER, NUMBER, SMALL, st.integers(0, 99))


@patient
@given(st.lists(ITERATION, min_size=1, max_size=60), st.booleans(), st.booleans(), st.sampled_from([300, 3000, 1 << 20]))
def test_iterations_are_read_to_the_figure(steps: list[tuple[int, ...]], as_json: bool, dummy: bool, block: int):
    lines, expected = [], []
    for n, (engine, *numbers) in enumerate(steps):
        body = (
            b"Engine %03d: " % engine
            + STEP % tuple(numbers)
            + b" (dummy)" * dummy
            + b", GPU KV cache usage: %d.%d%%" % divmod(n, 10)
        )
        stamp = b"%02d:%02d:%02d" % (n // 3600 + 1, n // 60 % 60, n % 60)
        head = b"(EngineCore_DP%d pid=%d) INFO 11-29 %b [core.py:1] " % (engine, n, stamp)
        whole = b'{"asctime": "2026-11-29 %b,%03d", "process": 7, "message": "%b"}' % (stamp, n, body)
        lines.append(whole if as_json else head + body)
        index, requests, context, generating, generated, ms, hundredths = numbers
        ts = datetime(2026, 11, 29, n // 3600 + 1, n // 60 % 60, n % 60, tzinfo=UTC).timestamp()
        expected.append({
            "line": n + 1, "ts": ts + n / 1000 if as_json else ts, "engine": str(engine), "fine": as_json, "iteration": index,
            "context_requests": requests, "context_tokens": context, "generation_requests": generating,
            "generation_tokens": generated, "elapsed_s": float(b"%d.%02d" % (ms, hundredths)) / 1000,
            "kv_usage_ratio": n / 10 / 100, "dummy": dummy,
        })  # fmt: skip
    found = rows(b"\n".join(lines) + b"\n", block=block)
    assert found["step"] == expected
    assert told(found)["rejected"] == 0


RATE: Final = st.none() | st.integers(0, 1000).map(lambda n: n / 10)
STATISTICS: Final = st.tuples(st.integers(0, 15), NUMBER, NUMBER, SMALL, SMALL, st.none() | SMALL, RATE, RATE, RATE)


@patient
@given(
    st.lists(STATISTICS, max_size=60),
    st.sampled_from([500, 1 << 20]),
)
def test_stats_are_read_to_the_figure(found_in: list[tuple[Any, ...]], block: int):
    lines, expected = [], []
    for n, (engine, prompt, generation, running, waiting, deferred, prefix, external, mm) in enumerate(found_in):
        rates = (("Prefix cache", prefix), ("External prefix cache", external), ("MM cache", mm))
        lines.append(
            f"INFO 11-29 12:00:{n % 60:02d} [loggers.py:1] Engine {engine:03d}: "
            f"Avg prompt throughput: {prompt / 10:.1f} tokens/s, "
            f"Avg generation throughput: {generation / 10:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
            + ("" if deferred is None else f"Deferred: {deferred} reqs, ")
            + f"GPU KV cache usage: {n / 10:.1f}%"
            + "".join("" if rate is None else f", {name} hit rate: {rate:.1f}%" for name, rate in rates)
        )
        ratios = [None if rate is None else rate / 100 for _, rate in rates]
        expected.append((str(engine), prompt / 10, generation / 10, running, waiting, deferred, n / 10 / 100, *ratios))
    found = rows("\n".join(lines).encode(), block=block)
    assert [tuple(row.values())[2:] for row in found.get("stat", [])] == expected


def scraps() -> st.SearchStrategy[bytes]:
    """Pieces of samples, changed in a digit or two, and bytes of any kind."""
    lines = sorted({line for data in FILES.values() for line in data.split(b"\n")})

    def piece(draw: Callable[..., Any]) -> bytes:
        line = draw(st.sampled_from(lines))
        first = draw(st.integers(0, len(line)) | st.just(0))
        part = line[first : draw(st.integers(first, len(line)) | st.just(len(line)))]
        for _ in range(draw(st.integers(0, 2))):
            at = draw(st.integers(0, len(part)))
            part = (
                part[:at]
                + draw(st.sampled_from([b"", b"0", b"19", b"\n", b"\r", b"\0", b"\xff", b'"', b" ", b"%"]))
                + part[at + 1 :]
            )
        return part

    return st.composite(piece)() | st.binary(max_size=40)


TEXTS: Final = st.lists(st.tuples(scraps(), st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"", b"\n\n"])), max_size=25).map(
    lambda parts: b"".join(part + end for part, end in parts)
)


@patient
@given(TEXTS | st.binary(max_size=300), st.sampled_from([1, 3, 50, 700, 1 << 20]))
@example(b"INFO " + b"9" * 5000 + b"-1", 1 << 20)
@example(b'{"asctime": ' + b"[" * 5000, 1 << 20)
@example(b'{"log": "{\\"log\\": \\"x"}', 1 << 20)
@example(
    b"(EngineCore pid=1) INFO 11-29 12:00:00 [c.py:1] Initializing a V1 LLM engine (v1) with config: " + b"a=[" * 3000, 1 << 20
)
def test_any_bytes_are_read_alike_whatever_the_blocks(data: bytes, block: int):
    whole = rows(data)
    assert rows(data, block=block) == whole
    assert told(whole)["rejected"] <= told(whole)["lines"] == data.count(b"\n") + (not data.endswith(b"\n") and data != b"")


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("block", [1, 7, 100, 1000])
def test_blocks_do_not_matter(name: str, block: int):
    assert rows(FILES[name], block=block) == rows(FILES[name])


def repeated(data: bytes) -> bytes:
    """A sample again and again: enough lines of a shape for the table."""
    return (data + b"\n" * (not data.endswith(b"\n"))) * 30


@pytest.mark.parametrize("name", sorted(set(FILES) - {"good-nul-bom", "bad-not-ours"}))
def test_pattern_and_table_read_the_same(name: str):
    data = repeated(FILES[name])
    assert rows(data) == rows(data, block=97)


FREQUENT: Final = sorted(
    {
        line
        for data in GOOD.values()
        for line in data.split(b"\n")
        if b"reqs, " in line or b"Iteration(" in line or b" HTTP/1.1" in line
    }
)
DIGITS: Final = st.sampled_from(
    [b"0", b"00", b"7", b"12", b"31", b"59", b"60", b"2026", b"100", b"999", b"9" * 15, b"1" + b"0" * 16]
)


@patient
@given(st.sampled_from(FREQUENT), st.lists(st.tuples(st.integers(0, 40), DIGITS), max_size=60), st.integers(9, 30))
def test_pattern_and_table_read_any_digits_alike(line: bytes, changes: list[tuple[int, bytes]], count: int):
    lines = [line] * count
    for at, (place, digits) in enumerate(changes):
        spans = [match.span() for match in re.finditer(rb"\d+", lines[at % count])]
        first, last = spans[place % len(spans)]
        lines[at % count] = lines[at % count][:first] + digits + lines[at % count][last:]
    data = b"\n".join([line, *lines]) + b"\n"
    assert rows(data) == rows(data, block=1)


CLEAN: Final = sorted(set(GOOD) - {"nul-bom.log"})
PREFIXES: Final = {
    "crlf": lambda line: line + b"\r",
    "colour": lambda line: b"\x1b[0;36m" + line[:9] + b"\x1b[0;0m" + line[9:],
    "compose": lambda line: b"vllm-1  | " + line,
    "pod": lambda line: b"[pod/vllm-7d9f-x/server] " + line,
    "journald": lambda line: b"Nov 29 12:00:00 gpu-host-a vllm[6277]: " + line,
}


INSIDE: Final = ("rsyslog-colours.log", "colour")  # would put one escape inside of another


@pytest.mark.parametrize(("name", "transport"), sorted({(name, kind) for name in CLEAN for kind in PREFIXES} - {INSIDE}))
def test_transports_change_nothing(name: str, transport: str):
    lines = GOOD[name].split(b"\n")
    wrapped = [PREFIXES[transport](line) if line.strip(b"\r") or at + 1 < len(lines) else line for at, line in enumerate(lines)]
    assert rows(b"\n".join(wrapped)) == rows(GOOD[name])


@pytest.mark.parametrize("name", [name for name in CLEAN if name.startswith("text-")])
def test_a_containers_stamp_is_the_time_of_all_rows(name: str):
    lines = GOOD[name].splitlines(keepends=True)
    stamped = b"".join(b"2026-11-29T20:%02d:%02d.250000000Z " % divmod(at, 60) + line for at, line in enumerate(lines))
    plain, found = rows(GOOD[name]), rows(stamped)
    for table in ("stat", "step", "event"):
        for was, row in zip(plain.get(table, []), found.get(table, []), strict=True):
            at = row["line"] - 1
            assert row["ts"] == pytest.approx(datetime(2026, 11, 29, 20, at // 60, at % 60, 250_000, UTC).timestamp())
            assert {**row, "ts": 0, "fine": 0} == {**was, "ts": 0, "fine": 0}
            assert row.get("fine", True) is True
    assert told(found)["clock_offset_s"] is not None


def agrees(part: Any, full: Any) -> bool:
    """Tell whether nothing in `part` contradicts `full`: what is missing is unknown, texts may be shorter."""
    if part is None or (isinstance(part, str) and isinstance(full, str) and full.startswith(part) and len(part) > 8):
        return True
    if isinstance(part, dict):
        return isinstance(full, dict) and all(name in full and agrees(value, full[name]) for name, value in part.items())
    return bool(part == full)


@patient
@given(st.data())
def test_a_cut_file_invents_nothing(data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(GOOD)))
    text = GOOD[name]
    at = data.draw(st.integers(0, len(text)))
    check_cut(name, at)


def check_cut(name: str, at: int) -> None:
    text = GOOD[name]
    full, part = rows(text), rows(text[:at])
    for table in ("stat", "step"):
        by_line: dict[int, list[dict[str, Any]]] = {}
        for row in full.get(table, []):
            by_line.setdefault(row["line"], []).append(row)
        for row in part.get(table, []):
            assert any(agrees(row, other) for other in by_line.get(row["line"], [])), (name, at, row)
    counts = {(event["method"], event["path"], event["status"]): event["count"] for event in events(full, "access")}
    for event in events(part, "access"):
        assert event["count"] <= counts[event["method"], event["path"], event["status"]], (name, at)
    for event in part.get("event", []):
        if event["kind"] not in {"access", "requests_logged"}:
            others = [row for row in full["event"] if row["line"] == event["line"] and row["kind"] == event["kind"]]
            assert any(agrees(event, other) for other in others), (name, at, event)


@pytest.mark.parametrize("name", ["case-08.log", "case-10.log", "text-0.33-offload.log", "optional-fields.log", "trouble.log"])
def test_no_cut_near_a_figure_invents_one(name: str):
    for match in re.finditer(rb"\d(?=\D|$)", GOOD[name]):
        check_cut(name, match.start())


def test_reading_names_no_file_of_the_machine():
    for file in samples(vllm_log):
        assert not re.search(rb"/(?:home|root|opt|usr|srv)/", Path(file).read_bytes()), file.name


TRANSPORTS: Final = (
    b"2026-11-29T12:00:00.5Z ",
    b"vllm-1  | ",
    b"[pod/a/b] ",
    b"Nov 29 12:00:00 host vllm[7]: ",
    b"2026-11-29T13:00:00.5+01:00 stdout F ",
)


CHAINS: Final = [chain for size in (2, 3) for chain in itertools.permutations(TRANSPORTS, size)]


@pytest.mark.parametrize("chain", [one for one in CHAINS if sum(part[:1] == b"2" for part in one) < 2])
@pytest.mark.parametrize("process", [b"(APIServer pid=7) ", b"(EngineCore_DP0 pid=9) (APIServer pid=7) "])
def test_a_line_comes_through_any_transports_in_a_row(chain: tuple[bytes, ...], process: bytes):
    """Of `docker compose logs` in a pod: groups of one transport must not be in the way of those of the next."""
    found = rows((b"".join(chain) + LINE.replace(b"(APIServer pid=7) ", process) + b"\n") * 2)
    assert column(found, "running") == [12, 12]
    stamped = any(one[:1] == b"2" for one in chain)
    assert set(column(found, "ts")) == {NOON + 0.5 if stamped else NOON}
    assert "rejected_line" not in found


def test_an_aggregate_of_more_engines_than_there_are_is_rejected():
    whole = LINE.replace(b"Engine 000:", b"2 Engines Aggregated:")
    assert events(rows(whole + b"\n"), "aggregate")[0]["engines"] == 2
    found = rows(whole.replace(b"2 Engines", b"9" * 400 + b" Engines") + b"\n")
    assert told(found)["rejected"] == 1
