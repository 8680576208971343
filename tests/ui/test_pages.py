"""Every page on every incident and on an empty store, as Streamlit runs it; and what the pages are made of."""

import atexit
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from recordings import INCIDENTS, NOON, ROOT, finished, judged, loaded, recorded, scrapes, stored
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.app_test import TMP_DIR

from analyzers.links import CHAIN
from analyzers.model import TARGETS, Part, Stage, Target
from app.alerts import history
from app.alerts.definitions import slo_of
from app.reports import svg
from app.store import Store, sql
from app.ui import chain, decisions, draw, evidence, first, ledger, marks, shared, verdict, waterfall, words
from app.ui.markup import Html, esc, join, link, row, tag
from app.ui.screens import PAGES
from app.ui.session import Pick, Recording, pick_of, scope
from app.ui.words import TITLES

atexit.register(TMP_DIR.cleanup)  # else its end is a warning, and a warning is an error

LOGS: Final = ROOT / "sample_data" / "formats" / "vllm_log"
PAGE_NAMES: Final = [module.__name__.rpartition(".")[2] for module in PAGES]


def draws(page: str) -> None:
    """Run by Streamlit: the frame, and in it a page."""
    import importlib  # noqa: PLC0415 Streamlit takes the text of this function alone

    from app.ui import main  # noqa: PLC0415 as above

    module = importlib.import_module(f"app.ui.screens.{page}")
    main.PAGES = (module, *(one for one in main.PAGES if one is not module))
    main.frame()


def opened(page: str, store: Store, **params: str) -> AppTest:
    if shared.held()[0] is not store:  # else the caches are warm
        shared.hold(store)
    app = AppTest.from_function(draws, default_timeout=60, kwargs={"page": page})
    for name, value in params.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception, [one.message for one in app.exception]
    return app


def html(app: AppTest) -> str:
    return "".join(one.proto.body for one in app.get("html"))


def plain(markup: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]+>", " ", markup, flags=re.DOTALL))


# -- pages --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_an_empty_store_says_what_to_do(page: str):
    app = opened(page, Store())
    shown = html(app) + "".join(one.value for one in app.code)
    assert "Nothing has been loaded yet." in shown
    assert "weaklink load PATH" in shown
    assert page != "overview" or {one.value for one in app.code} == {line for _, _, line in first.WAYS}


@pytest.mark.parametrize("name", recorded(INCIDENTS))
def test_every_page_draws_every_incident_and_the_headline_is_its_verdict(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decisions, "MOST_REPLAYED", 0)  # replays are tried once, below
    store, _ = loaded(INCIDENTS / name)
    for target, found in judged(INCIDENTS / name).attribution.targets.items():
        shown = html(opened("overview", store, target=target))
        assert f'data-verdict="{found.verdict}" data-limiting="{found.limiting or ""}"' in shown
        assert len(re.findall(r'class="wl-link', shown)) == len(CHAIN)
        assert shown.count("wl-link limiting") == (1 if found.limiting else 0)
    for page in ("timeline", "kv_cache", "ranks"):
        assert opened(page, store).get("plotly_chart")
    assert name in html(opened("upload", store))
    seen = plain(html(opened("link", store, link=name if name in TITLES else "slots")))
    assert "Raw samples behind it" in seen
    assert "None in this window. Kinds that would tell" in seen or "log.gz:" in seen
    told = "data-request=" in html(opened("requests", store))
    assert told


def test_a_log_alone_has_no_seconds_and_no_zeros_for_them():
    shown = plain(html(opened("overview", stored(LOGS / "good" / "case-02.log"))))
    assert "KV eviction limits TTFT; no request seconds say by how much." in shown
    assert "TTFT mean unknown" in shown
    assert "no request seconds in stats lines" in shown
    assert " 0 s " not in shown


def test_one_text_without_a_time_is_drawn():
    store = stored(ROOT / "sample_data" / "formats" / "prometheus_text" / "good" / "vllm-0.20.txt")
    for page in PAGE_NAMES:
        opened(page, store)


def test_an_engine_picked_is_the_only_one_judged():
    store, _ = loaded(INCIDENTS / "kv_transfer")
    first, second = (f"{one.instance}/{one.engine}" for one in judged(INCIDENTS / "kv_transfer").attribution.engines)
    assert f"only {first} is shown on this page" in plain(html(opened("overview", store, engine=first)))
    assert f"only {second} is shown on this page" in plain(html(opened("overview", store, engine=second)))
    assert "2 engines · choose a row to see one alone" in plain(html(opened("overview", store, engine="another/0")))


def test_a_link_s_page_says_what_it_holds_and_where_that_stands():
    store, _ = loaded(INCIDENTS / "slots")
    shown = plain(html(opened("link", store, link="slots"))).replace(words.THIN, " ")
    part = judged(INCIDENTS / "slots").attribution.targets["ttft"].part("slots")
    assert f"Slots hold {words.value('ttft', part.seconds)}".replace(words.THIN, " ") in shown
    assert all(section in shown for section in ("Why it costs latency", "How it is computed", "What to try"))
    assert "vllm:num_requests_running" in shown
    assert "Predicted from this window, for TTFT" in shown
    other = plain(html(opened("link", store, link="no such link")))
    assert "Slots hold" in other  # the limiting one


def test_without_request_records_the_page_says_which_flag_gives_them():
    store, _ = loaded(INCIDENTS / "slots" / "metrics.jsonl.gz")
    app = opened("requests", store)
    shown = plain(html(app)).replace(words.THIN, " ")
    assert "Only histograms tell of latency here" in shown
    assert "--otlp-traces-endpoint" in shown
    assert re.search(r"TTFT \d+ \d\.\d+ s \d\S* . \d\S* s", shown)  # exact mean, percentiles by their bucket
    assert app.get("plotly_chart")  # the buckets as a heat map


def test_a_request_of_the_address_is_shown_or_said_to_be_missing():
    store, _ = loaded(INCIDENTS / "slots")
    (key,) = store.rows("SELECT request_id FROM request_row ORDER BY e2e_s LIMIT 1")[0]
    assert f'data-request="{key}"' in html(opened("requests", store, request=key))
    assert "There is no request &lt;b&gt; in this window" in html(opened("requests", store, request="<b>"))


def test_objectives_are_held_against_the_window_and_judge_load():
    store, _ = loaded(INCIDENTS / "healthy")
    assert 'data-verdict="healthy"' in html(opened("overview", store, target="e2e"))
    try:
        history.save(store, slo_of({"name": "x", "kind": "e2e", "threshold": "1ms", "objective": "99%"}, "a test"))
        shown = html(opened("overview", store, target="e2e"))
        assert "✕ target 0.001 s for 99" in plain(shown)
        assert 'data-verdict="limited"' in shown  # by load: the objective is missed
        assert "the objective x is missed" in plain(shown)
        # a mean above the threshold misses nothing where one request in a hundred has to meet it
        history.remove(store, "x")
        history.save(store, slo_of({"name": "x", "kind": "e2e", "threshold": "2.5s", "objective": "0.1%"}, "a test"))
        assert 'data-verdict="healthy"' in html(opened("overview", store, target="e2e"))
    finally:
        history.remove(store, "x")


def test_a_baseline_stands_beside_the_window():
    store, _ = loaded(INCIDENTS / "slots")
    start = judged(INCIDENTS / "slots").attribution.start
    params = Pick(base_start=start, base_end=start + 36.0).params()
    shown = plain(html(opened("timeline", store, **params))).replace(words.THIN, " ")
    assert "Against the baseline" in shown
    assert re.search(r"Slots \d\.\d+ \d\.\d+ \+\d\.\d+ ", shown)
    assert "baseline " in plain(html(opened("overview", store, **params)))


def test_when_it_began_and_with_what_is_said():
    store, _ = loaded(INCIDENTS / "prefill_backlog")
    shown = plain(html(opened("overview", store))).replace(words.THIN, " ")
    assert re.search(r"Began 15:34:10 with 3\d prompts of about 12,000 tokens within \d\.\d+ s; it lasted 14 s\.", shown)
    assert re.search(r"Predicted for TTFT from this window, each alone · all .*.\d\.\d\d s", shown)


def test_every_link_s_evidence_says_what_its_columns_and_log_lines_are():
    store = Store()
    known = {name for (name,) in store.rows("SELECT DISTINCT quantity FROM quantity")}
    for module in CHAIN:
        found = evidence.evidence(module.LINK.name)
        assert found.columns
        assert all(says for _, says in found.columns)
        assert found.kinds
        assert known & set(found.words) or "event_row" in found.words


def test_a_long_series_keeps_its_spikes_and_dips():
    values = np.ones(20_000)
    values[[777, 12_345]] = 9.0, -9.0
    short = evidence.reduced({"ts": np.arange(20_000.0), "x": values})
    assert len(short["ts"]) == len(short["x"]) == 2 * evidence.SLICES
    assert (short["x"].max(), short["x"].min()) == (9.0, -9.0)


def test_a_model_picked_leaves_its_engines(tmp_path: Path):
    for port, model in ((8000, "small"), (8001, "large"), (8002, "large")):
        rows = [
            (t, {name.replace('model_name="m"', f'model_name="{model}"'): n for name, n in finished(t).items()})
            for t in range(0, 60, 5)
        ]
        scrapes(tmp_path / "fleet" / f"{port}.jsonl", rows, url=f"http://127.0.0.1:{port}/metrics")
    store = stored(tmp_path / "fleet")
    app = opened("overview", store)
    assert list(app.dataframe[0].value["model"]) == ["small", "large", "large"]
    assert "3 engines · choose a row to see one alone" in plain(html(app))
    assert "only the 2 of large are shown on all pages" in plain(html(opened("overview", store, model="large")))
    assert "choose a row to see one alone" in plain(html(opened("overview", store, model="no such model")))


def test_what_users_named_is_text(tmp_path: Path):
    path = scrapes(tmp_path / "<script>alert(1)<" / "metrics.jsonl", [(t, finished(t)) for t in range(0, 60, 5)])
    store = stored(path.parent)
    assert all("<script>" not in html(opened(page, store)) for page in PAGE_NAMES)
    assert "&lt;script&gt;" in html(opened("upload", store))


def test_an_upload_is_loaded_and_explained():
    app = opened("upload", Store())
    files = [LOGS / "good" / "case-02.log", ROOT / "sample_data" / "formats" / "prometheus_text" / "bad" / "malformed.txt"]
    for file in files:
        app.get("file_uploader")[0].upload(file.name, file.read_bytes(), "text/plain")
    app.get("button")[-1].click().run()
    assert not app.exception
    shown = plain(html(app))
    assert "2 files read of 2" in shown
    assert "malformed.txt, line 1: expected: name{labels} value [timestamp]" in shown
    store, _ = shared.held()
    assert len({bundle for (bundle,) in store.rows("SELECT bundle FROM source_file")}) == 1  # they explain each other


def test_files_that_came_before_lead_to_their_recording():
    store, _ = loaded(INCIDENTS / "slots")
    app = opened("upload", store)
    log = INCIDENTS / "slots" / "server.log.gz"
    app.get("file_uploader")[0].upload(log.name, log.read_bytes(), "application/gzip")
    app.get("button")[-1].click().run()
    assert "0 file" not in plain(html(app))
    assert "no files read of 1, 1 already there" in plain(html(app))
    assert app.get("page_link")


def test_a_recording_that_is_not_there_is_said():
    store, _ = loaded(INCIDENTS / "slots")
    assert "There is no recording elsewhere in the store: this is the newest." in html(
        opened("overview", store, recording="elsewhere")
    )
    assert "There is no recording" not in html(opened("overview", store, recording="slots"))


def test_a_broken_archive_is_said_plainly():
    app = opened("upload", Store())
    app.get("file_uploader")[0].upload("broken.zip", b"PK\x03\x04 and no more", "application/zip")
    app.get("button")[-1].click().run()
    assert not app.exception
    assert "broken.zip" in plain("".join(one.value for one in app.error)) + plain(html(app))


# -- picks --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pick",
    [
        Pick(),
        Pick("tpot", "127.0.0.1:8000/1", NOON + 0.25, NOON + 61.5, "a bundle"),
        Pick(base_start=NOON, base_end=NOON + 60, zone="local", link="slots", request="cmpl-&1"),
        Pick(start=3.0, end=7.0),  # texts without a clock
    ],
)
def test_picks_survive_the_address(pick: Pick):
    assert pick_of(pick.params()) == pick


def test_an_address_that_makes_no_sense_is_left_aside():
    assert pick_of({"target": "x", "from": "yesterday", "to": "nan", "base-from": "9", "base-to": "3", "zone": "mars"}) == Pick()
    assert pick_of({"from": "2026-11-29T12:00:00Z", "to": "2026-11-29T11:00:00Z"}) == Pick()
    assert pick_of({"from": "2026-11-29T12:00:00"}).start == NOON


def test_the_newest_recording_is_shown_unless_another_is_asked_for():
    old, new = Recording("old", 0.0, 9.0, ("a",)), Recording("new", 100.0, 109.0, ("b",))
    assert scope([old, new], Pick()) == (100.0, 109.0, ("b",))
    assert scope([old, new], Pick(recording="old")) == (0.0, 9.0, ("a",))
    assert scope([old, new], Pick(recording="*")) == (-math.inf, math.inf, ("a", "b"))
    assert scope([old, new], Pick(start=5.0, end=105.0)) == (5.0, 105.0, ("a", "b"))
    assert scope([new], Pick()) == (-math.inf, math.inf, ("b",))
    assert scope([], Pick()) == (-math.inf, math.inf, ())


@pytest.mark.parametrize(("apart_s", "said"), [(15.0, "on one clock"), (17.0, "each from its own arrival")])
def test_slow_requests_that_lie_far_apart_have_a_clock_each(apart_s: float, said: str):
    bars = [
        waterfall.Bar({"key": str(at), "arrival_ts": NOON + at * apart_s, "e2e_s": 2.0, "ttft_s": 0.5, "output_tokens": 9, **dict.fromkeys(f"{stage.value}_s" for stage in waterfall.STAGES)}, None, str(at))
        for at in range(2)
    ]  # fmt: skip
    assert waterfall.by_which(bars) == said
    title = waterfall.waterfall(bars, "0").layout.xaxis.title.text
    assert ("since each one's arrival" in (title or "")) == (said != "on one clock")


def test_of_a_live_recording_it_is_the_last_hour():
    live = Recording("live", 0.0, 90_000.0, ("a",))
    assert scope([live], Pick()) == (86_400.0, 90_000.0, ("a",))
    assert scope([live], Pick(), 89_995.0) == (86_395.0, 89_995.0, ("a",))  # up to what is computed already
    assert scope([live], Pick(), 99_000.0) == (86_400.0, 90_000.0, ("a",))  # nothing came since
    assert scope([live], Pick(start=10.0)) == (10.0, 90_000.0, ("a",))


def test_a_drag_is_read_as_utc():
    assert draw.seconds("2026-11-29 12:00:01.5") == NOON + 1.5
    assert draw.seconds(4) == 4.0
    assert draw.seconds("here") is None


def test_local_time_is_written_and_read_back():
    try:
        words.write_in(-3.5 * 3600)
        assert (words.zone(), words.clock(NOON)) == ("UTC\N{MINUS SIGN}3:30", "08:30:00")
        assert draw.seconds(draw.stamp(NOON)) == NOON
        assert str(draw.times({"ts": [NOON], "timed": [True]})[0]).startswith("2026-11-29T08:30")
    finally:
        words.write_in(0.0)
    assert words.zone() == "UTC"


# -- words --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "seconds", "text"),
    [
        ("ttft", None, "unknown"),
        ("ttft", math.nan, "unknown"),
        ("ttft", 0.0, "0"),
        ("ttft", 0.0004, "< 1 ms"),
        ("ttft", 0.0278, "0.0278 s"),
        ("ttft", 0.09996, "0.100 s"),
        ("ttft", 1.7325, "1.73 s"),
        ("e2e", 1234.5, "1,234 s"),
        ("e2e", -0.5, "\N{MINUS SIGN}0.500 s"),
        ("tpot", 0.01317, "13.2 ms"),
        ("tpot", 0.0000004, "< 1 µs"),
    ],
)
def test_seconds_have_three_significant_digits_and_the_target_s_unit(target: str, seconds: float | None, text: str):
    assert words.value(target, seconds).replace(words.THIN, " ") == text


def test_a_bucket_is_written_by_its_edges():
    shown = [words.bounds("itl", 0.025, 0.05), words.bounds("ttft", 0.5, 1.0), words.bounds("ttft", 20.0, math.inf)]
    assert [text.replace(words.THIN, " ") for text in shown] == ["25 \N{EN DASH} 50 ms", "0.5 \N{EN DASH} 1 s", "above 20 s"]


@pytest.mark.parametrize("module", CHAIN, ids=lambda module: module.LINK.name)
def test_every_link_has_something_to_try(module: object):
    assert words.remedies(module.__doc__)
    assert words.first_sentence(module.__doc__)


def test_flags_are_code_and_the_rest_is_text():
    assert words.flagged("<b> --max-num-seqs N up, a--b") == "&lt;b&gt; <code>--max-num-seqs N</code> up, a--b"


def test_links_are_called_by_their_titles():
    assert words.titled("kv_eviction: up to 1 s, slots") == "KV eviction: up to 1 s, slots"


def test_markup_escapes_what_is_not_markup():
    assert tag("p", "<i>", Html("<br>"), None, title='"x"') == '<p title="&quot;x&quot;">&lt;i&gt;<br></p>'
    assert join(["a", "<"], " & ") == "a &amp; &lt;"
    assert esc(esc("<")) == "&lt;"
    assert 'target="_self"' in link("upload", "x")
    assert "data-head" not in row(["a", ""], heads={1: "range"})


# -- the ledger -----------------------------------------------------------------------------------------------------------------


def target(name: str = "ttft", unexplained: float = 0.0, **seconds: float | None) -> Target:
    parts = tuple(Part(module.LINK.name, seconds.get(module.LINK.name, 0.0), {}, fact="a fact") for module in CHAIN)
    measured = 0.05 + unexplained + sum(part.seconds or 0.0 for part in parts)
    stages = dict.fromkeys(TARGETS[name], 0.01)
    return Target(name, measured, 0.05, unexplained, stages, parts, None, None, "healthy")


def numbers(markup: str) -> Iterator[tuple[str, float]]:
    for found in re.findall(r"<tr[^>]*>(.*?)</tr>", markup.partition("<tbody>")[2]):
        cells = [plain(cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", found)]
        if re.fullmatch(r"[\N{MINUS SIGN}\d.,]+", cells[1]):
            yield cells[0], float(cells[1].replace("\N{MINUS SIGN}", "-").replace(",", ""))


@pytest.mark.parametrize(
    "one", [target(slots=0.4), target(slots=0.4, frontend=0.1, unexplained=0.2), target("tpot", kv_eviction=0.003)]
)
def test_the_column_adds_up_to_what_was_measured(one: Target):
    rows = dict(numbers(ledger.ledger(one, str)))
    measured = rows.pop("Measured")
    assert sum(rows.values()) == pytest.approx(measured, abs=0.001 * len(rows))


@pytest.mark.parametrize("unexplained", [0.0, 0.3, -0.1])
def test_the_bar_has_no_gaps(unexplained: float):
    bar = ledger.ledger(target(slots=0.4, frontend=0.1, unexplained=unexplained), str).partition("wl-key")[0]
    edges = [(float(left), 100 - float(right)) for left, right in re.findall(r"left:([\d.]+)%;right:([\d.]+)%", bar)]
    assert edges[0][0] == 0.0
    assert all(end == pytest.approx(start, abs=1e-3) for (_, end), (start, _) in itertools.pairwise(edges))
    assert edges[-1][1] == pytest.approx(100, abs=1e-3)
    assert ("more than was measured" in bar) == (unexplained < 0)


def test_a_part_of_the_floor_is_not_shown_as_the_whole():
    one = replace(target(slots=0.4), floor_whole=False)
    assert "floor, at least 0.05" in plain(ledger.ledger(one, str))
    assert "floor, at least 0.05 s" in svg.ledger(asdict(one), TITLES, lambda value: f"{value:.2f} s")
    assert "at least" not in plain(ledger.ledger(target(slots=0.4), str))


def test_ruled_out_and_cannot_tell_are_never_left_out():
    shown = plain(ledger.ledger(target(slots=0.4, moe_imbalance=None), str))
    assert "Ruled out 0 API server (a fact)" in shown
    assert "Cannot tell unknown MoE imbalance : a fact" in shown


def test_not_used_unknown_and_zero_are_three_looks():
    parts = (Part("slots", 0.0, {}), Part("kv_transfer", 0.0, {}, used=False), Part("moe_imbalance", None, {}, bound_s=0.02))
    one = Target("ttft", 1.0, 0.5, 0.5, {Stage.QUEUE: 0.5}, parts, None, None, "healthy")
    shown = chain.chain(one, str)
    assert [look.strip() for look in re.findall(r'class="wl-link([^"]*)"', shown)] == ["", "off", "unknown"]
    assert plain(shown).replace(words.THIN, " ").count("up to 0.0200 s") == 1


def test_a_verdict_has_its_own_sentence():
    one = target(slots=0.4)
    assert verdict.headline(one) == "Nothing limits TTFT beyond load: mean 0.450 s.".replace(" s.", f"{words.THIN}s.")
    part = Part("slots", 0.4, {}, status="limiting")
    plural = replace(one, parts=(part,), limiting="slots", verdict="limited")
    assert plain(verdict.headline(plural)).strip().startswith("Slots limit TTFT: 0.400")
    assert "most of it unexplained" in verdict.headline(target(unexplained=1.0))


# -- the timeline ---------------------------------------------------------------------------------------------------------------


def test_a_restart_told_by_the_log_is_marked_once():
    columns = {"ts": [NOON, NOON + 100]}
    happened = [
        {"ts": NOON + 10, "kind": "start"},
        {"ts": NOON + 40, "kind": "listening"},
        {"ts": NOON + 45, "kind": "restart"},
        {"ts": NOON + 500, "kind": "jit"},
    ]
    assert marks.marks(happened, columns) == [(NOON + 10, "server starts"), (NOON + 40, "ready")]


def test_no_trace_has_more_points_than_are_seen(tmp_path: Path):
    store = stored(scrapes(tmp_path / "long.jsonl", [(t, finished(t)) for t in range(0, 40_000, 10)]))
    asked = {"low": -math.inf, "high": math.inf, "engines": ["127.0.0.1:8000/0"], "points": draw.POINTS}
    columns = store.columns(sql("screens", "timeline"), asked)
    assert store.rows("SELECT count(*) FROM interval_row") == [(3999,)]
    assert 1000 < len(columns["ts"]) <= draw.POINTS + 1
    assert float(columns["ts"][-1]) == NOON + 39_990  # the last scrape is drawn
