"""A log's stamps against the counters of its server: found where the content is clear, left alone where it is not."""

import gzip
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from recordings import INCIDENTS, NOON, loaded, scrapes, series, stored

from app import align
from app.pipeline import attribution_for

RATES = (100, 400, 50, 900, 20, 300, 700, 10, 500, 60)


def counted(rates=RATES, every: float = 10.0):
    """Return ts and count of a counter that grows at these rates, and the lines that say so."""
    ts = np.arange(0.0, every * len(rates) + 1)
    grown = np.repeat(np.array(rates, dtype=float), int(every))
    return (
        NOON + ts,
        np.concatenate([[0.0], np.cumsum(grown)]),
        NOON + every * np.arange(1, len(rates) + 1),
        np.array(rates, float),
    )


@pytest.mark.parametrize("offset", [0.0, -7 * 3600.0, 3600.0 * 5.5, 42.0, -3.0])
def test_the_offset_is_found(offset):
    ts, count, line, rate = counted()
    found = align.offset_of(line - offset, rate, ts, count)
    assert found is not None
    assert found.offset_s == pytest.approx(offset, abs=1.0)
    assert found.error_s <= 3
    assert found.lines == len(RATES)


@pytest.mark.parametrize("rates", [(100,) * 10, (100, 400) * 5, (0,) * 10])
def test_what_fits_everywhere_is_not_moved(rates):
    ts, count, line, rate = counted(rates)
    assert align.offset_of(line - 3600.0, rate, ts, count) is None


def test_another_run_does_not_match():
    ts, count, line, _ = counted()
    other = np.random.default_rng(1).permutation(np.array(RATES, dtype=float))
    assert align.offset_of(line, other, ts, count) is None


def stat(stamp: datetime, engine: int, rate: float) -> str:
    return (
        f"(APIServer pid=1) INFO {stamp:%m-%d %H:%M:%S} [loggers.py:1] Engine {engine:03}: Avg prompt throughput: 0.0 tokens/s, "
        f"Avg generation throughput: {rate:.1f} tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, "
        "Prefix cache hit rate: 0.0%\n"
    )


def written(folder: Path, hours: float) -> Path:
    """Return a bundle of scrapes and a log whose clock is `hours` behind."""
    ts, count, line, rate = counted()
    name = series("generation_tokens_total")
    scrapes(
        folder / "metrics.jsonl",
        [(t - NOON, {name: c, series("num_requests_running"): 1}) for t, c in zip(ts, count, strict=True)],
    )
    stamps = [datetime.fromtimestamp(t, UTC) - timedelta(hours=hours) for t in line]
    (folder / "server.log").write_text("".join(stat(stamp, 0, r) for stamp, r in zip(stamps, rate, strict=True)))
    return folder


def test_a_log_in_another_zone_is_moved_and_the_report_says_so(tmp_path):
    store = stored(written(tmp_path, 7))
    assert store.rows("SELECT min(ts), max(ts) FROM stat") == [(NOON + 10, NOON + 100)]
    (note,) = [note for note in attribution_for(store).notes if "moved" in note]
    assert note.startswith("server.log: its stamps (no zone) were moved by +7:00:00 (+- ")
    assert "10 stats lines match the server's counters" in note


def test_a_log_on_the_same_clock_is_noted_and_not_moved(tmp_path):
    store = stored(written(tmp_path, 0))
    assert store.rows("SELECT min(ts) FROM stat") == [(NOON + 10,)]
    ((fields,),) = store.rows("SELECT fields FROM event WHERE kind = 'aligned'")
    assert '"applied": false' in fields
    assert not [note for note in attribution_for(store).notes if "moved" in note]


def test_two_engines_whose_lines_are_a_second_apart(tmp_path):
    """Each engine is compared to its own counter: their sum at one stamp would be neither's rate."""
    ts, _, line, rate = counted()
    rates = {0: rate, 1: rate[::-1] * 2}
    totals = {engine: np.concatenate([[0.0], np.cumsum(np.repeat(own, 10))]) for engine, own in rates.items()}
    tokens = {engine: series("generation_tokens_total", str(engine)) for engine in rates}
    scrapes(
        tmp_path / "metrics.jsonl",
        [(t - NOON, {tokens[engine]: totals[engine][at] for engine in rates}) for at, t in enumerate(ts)],
    )
    lines = []
    for at, t in enumerate(line):
        for engine in rates:
            stamp = datetime.fromtimestamp(t + engine, UTC) - timedelta(hours=7)
            lines.append(stat(stamp, engine, rates[engine][at]))
    (tmp_path / "server.log").write_text("".join(lines))
    store = stored(tmp_path)
    assert store.rows("SELECT min(ts), max(ts) FROM stat") == [
        (pytest.approx(NOON + 10, abs=1), pytest.approx(NOON + 101, abs=1))
    ]


@pytest.mark.parametrize("hours", [0, 7, -5.5])
def test_a_log_with_nothing_but_steps(hours, tmp_path):
    """A short recording has too few stats lines, and a log of the engine core alone has none."""
    ts, count, _, _ = counted()
    name = series("generation_tokens_total")
    scrapes(tmp_path / "metrics.jsonl", [(t - NOON, {name: c}) for t, c in zip(ts, count, strict=True)])
    lines = []
    for at, tokens in enumerate(np.diff(count)):
        stamp = datetime.fromtimestamp(NOON + at, UTC) - timedelta(hours=hours)
        lines.append(
            f"(EngineCore_DP0 pid=9) INFO {stamp:%m-%d %H:%M:%S} [core.py:1] Iteration({at}): 0 context requests, 0 context tokens, "
            f"{tokens:.0f} generation requests, {tokens:.0f} generation tokens, iteration elapsed time: 5.00 ms\n"
        )
    (tmp_path / "core.log").write_text("".join(lines))
    store = stored(tmp_path)
    assert store.rows("SELECT count(*), min(ts) FROM step") == [(100, pytest.approx(NOON, abs=2 if hours else 0))]
    assert len(store.rows("SELECT 1 FROM event WHERE kind = 'aligned'")) == 1


def test_engines_that_contradict_each_other_move_nothing(monkeypatch, tmp_path):
    offsets = iter([align.Offset(7 * 3600.0, 1.0, 9), align.Offset(0.0, 1.0, 9)])
    monkeypatch.setattr(align, "_lines", lambda *_: dict.fromkeys("01", (np.zeros(5), np.zeros(5))))
    monkeypatch.setattr(align, "_counts", lambda *_: dict.fromkeys("01", (np.zeros(5), np.zeros(5))))
    monkeypatch.setattr(align, "offset_of", lambda *_: next(offsets))
    store = stored(written(tmp_path, 0))
    ((file_id,),) = store.rows("SELECT file_id FROM source_file WHERE format = 'vllm_log'")
    assert not store.rows("SELECT 1 FROM event WHERE kind = 'aligned'")
    assert file_id


def test_a_log_alone_stays_utc(tmp_path):
    folder = written(tmp_path, 7)
    (folder / "metrics.jsonl").unlink()
    assert stored(folder).rows("SELECT min(ts) FROM stat WHERE ts < ?", [NOON - 6 * 3600]) == [(NOON + 10 - 7 * 3600,)]


def test_a_recorded_log_set_back_seven_hours_is_put_right(tmp_path):
    """A real recording whose log's clock is turned back."""
    source = INCIDENTS / "prefill_backlog"
    truth = loaded(source)[0].rows("SELECT min(ts), max(ts) FROM stat")
    for file in source.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (log,) = tmp_path.glob("server.log.gz")

    def back(match: re.Match[bytes]) -> bytes:
        stamp = datetime.strptime(f"2026-{match[0].decode()}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) - timedelta(hours=7)
        return f"{stamp:%m-%d %H:%M:%S}".encode()

    text = re.sub(rb"(?<=INFO )\d\d-\d\d \d\d:\d\d:\d\d", back, gzip.decompress(log.read_bytes()))
    log.write_bytes(gzip.compress(text))
    found = loaded(tmp_path)[0].rows("SELECT min(ts), max(ts) FROM stat")
    assert found[0] == pytest.approx(truth[0], abs=1.5)
