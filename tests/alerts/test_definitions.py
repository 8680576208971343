"""The definition file: what is read, what is refused, and that every refusal names the place, the key and what was expected."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.slo import KINDS, PAGE, TICKET, TIMED, Rule, Slo
from app.alerts.definitions import Definitions, decoded, encoded, read
from app.alerts.table import DefinitionError, seconds_of, span_text

WHOLE = """
[alerts]
interval = "15s"
dashboard = "http://weaklink.example:8501/"

[[slo]]
name = "chat"
kind = "ttft"
threshold = "250ms"
objective = "99.5%"
period = "7d"
model = "m8b"
engine = "10.0.0.1:8000/1"
minimum = 11
pending = "12s"
keep = "13m"
burn = [{severity = "page", budget = "2%", long = "1h", short = "5m"}, {severity = "ticket", budget = 0.1, long = "3d", short = "6h"}]

[[slo]]
name = "good"
kind = "goodput"
threshold = "1.5s"
tpot = "50ms"
objective = 0.95

[[notify]]
name = "hook"
kind = "webhook"
url = "https://hook.example/x"
secret_env = "SECRET"
severities = ["page"]
title = "$slo costs $$"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "slo.toml"
    path.write_text(text)
    return path


def test_an_empty_file_defines_nothing(tmp_path: Path):
    path = written(tmp_path, "")
    assert read(path) == Definitions(path=path)


def test_a_whole_file(tmp_path: Path):
    found = read(written(tmp_path, WHOLE))
    rules = (Rule(PAGE, 0.02, 3600.0, 300.0), Rule(TICKET, 0.1, 259200.0, 21600.0))
    assert found.slos == (
        Slo("chat", "ttft", 0.995, 0.25, None, 604800.0, "m8b", "10.0.0.1:8000/1", 11, 12.0, 780.0, rules),
        Slo("good", "goodput", 0.95, 1.5, 0.05),
    )
    (hook,) = found.notifiers
    assert (hook.name, hook.kind, hook.secret_env, hook.severities, hook.title) == (
        "hook",
        "webhook",
        "SECRET",
        ("page",),
        "$slo costs $$",
    )
    assert (found.interval_s, found.dashboard) == (15.0, "http://weaklink.example:8501")


def test_tables_of_the_collectors_may_stand_in_the_same_file(tmp_path: Path):
    assert read(written(tmp_path, '[[target]]\nurl = "h:8000"\n' + WHOLE)).slos


CHAT = '[[slo]]\nname = "chat"\nkind = "ttft"\nthreshold = "1s"\nobjective = "99%"\n'
HOOK = '[[notify]]\nname = "hook"\nkind = "webhook"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[slo]]\n", "[[slo]] 1: name: expected a name, the key is missing"),
        (CHAT + CHAT, "[[slo]]: name: expected each name once, 'chat' is there twice"),
        (CHAT.replace("ttft", "latency"), "[[slo]] 1 'chat': kind: expected one of ttft, itl"),
        (CHAT.replace('"1s"', "1"), "[[slo]] 1 'chat': threshold: expected a length with its unit, such as \"250ms\""),
        (CHAT.replace('"1s"', '"1 fortnight"'), "threshold: expected a length with its unit"),
        (CHAT.replace('"1s"', '"0s"'), "threshold: expected a length from 0.1ms to 1d, got '0s'"),
        (CHAT.replace('threshold = "1s"\n', ""), "threshold: expected the seconds that a good event does not exceed"),
        (CHAT.replace('"99%"', '"100%"'), "objective: expected a share between 0 and 1"),
        (CHAT.replace('"99%"', "99"), 'objective: expected a share between 0 and 1, such as 0.99 or "99%", got 99'),
        (CHAT.replace('"99%"', "true"), "objective: expected a share between 0 and 1"),
        (CHAT.replace('objective = "99%"\n', ""), "objective: expected a share of good events"),
        (CHAT + "minimum = -1\n", "minimum: expected a whole number from 0"),
        (CHAT + 'tpot = "1s"\n', "tpot: expected a length for goodput, and for nothing else"),
        (CHAT.replace("ttft", "errors"), "threshold: expected none, as errors is no time"),
        (CHAT.replace("ttft", "goodput"), "tpot: expected a length for goodput"),
        (CHAT + 'treshold = "1s"\n', "treshold: expected one of name, kind, threshold"),
        (CHAT + "burn = []\n", "burn: expected a list of tables with severity, budget, long, short"),
        (
            CHAT + 'burn = [{severity = "page", budget = "2%", long = "1h", short = "2h"}]\n',
            "burn 1: short: expected a length from 1s to 1h",
        ),
        (
            CHAT + 'burn = [{severity = "panic", budget = "2%", long = "1h", short = "5m"}]\n',
            "burn 1: severity: expected one of page, ticket",
        ),
        (HOOK, "[[notify]] 1 'hook': expected one of url, url_env, url_file"),
        (HOOK + 'url = "hook.example"\n', "url: expected an http or https address"),
        (
            HOOK + 'url = "https://u:p@hook.example"\n',
            "url: expected url_env or url_file: an address with a password is a secret",
        ),
        (
            HOOK + 'url = "https://hook.example"\nsecret = "x"\n',
            "secret: expected secret_env or secret_file: no secret stands in this file",
        ),
        (HOOK + 'url = "https://hook.example"\ntitle = "$nothing"\n', "title: expected a text with $headline, $slo"),
        (HOOK + 'url = "https://hook.example"\ntext = "$ 5"\n', "text: expected a text with $headline"),
        (HOOK + 'url = "https://hook.example"\nseverities = ["all"]\n', "severities: expected a list of page and ticket"),
        (HOOK.replace("webhook", "apprise") + 'url = "https://x.example"\n', "addresses of apprise hold secrets"),
        ("[alerts]\ninterval = 5\n", "[alerts]: interval: expected a length with its unit"),
        ('[alerts]\ndashboard = "weaklink"\n', "[alerts]: dashboard: expected the http or https address"),
        ("[slo]\nname = 1\n", "slo: expected [[slo]] (a list of tables)"),
        ("[[slos]]\n", "slos: expected [[slo]], [[notify]] or [alerts]; this table is not known"),
        ("a = \n", "expected TOML"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(tmp_path: Path, text: str, said: str):
    path = written(tmp_path, text)
    with pytest.raises(DefinitionError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert said in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(DefinitionError, match="cannot be read"):
        read(tmp_path / "none.toml")


SECONDS = st.one_of(st.integers(1, 5000).map(lambda ms: ms / 1000), st.integers(1, 86400).map(float))
SLOS = st.builds(
    Slo,
    name=st.text(min_size=1).filter(str.strip),
    kind=st.sampled_from(sorted(set(TIMED) - {"goodput"})),
    objective=st.floats(0.01, 0.9999),
    threshold_s=SECONDS,
    period_s=st.integers(60, 2_000_000).map(float),
    model=st.one_of(st.none(), st.just("m8b")),
    minimum=st.integers(0, 1000),
    pending_s=SECONDS,
    rules=st.one_of(st.none(), st.just((Rule(PAGE, 0.02, 60.0, 30.0),))),
)


@given(SLOS)
def test_an_objective_survives_the_store(slo: Slo):
    back = decoded(encoded(slo))
    assert back.objective == slo.objective
    assert (back.name, back.kind, back.model, back.minimum, back.rules) == (slo.name, slo.kind, slo.model, slo.minimum, slo.rules)
    assert (back.threshold_s, back.period_s, back.pending_s) == pytest.approx((slo.threshold_s, slo.period_s, slo.pending_s))


@given(st.one_of(st.integers(1, 10**7).map(lambda ms: ms / 1000), st.integers(1, 10**7).map(float)))
def test_a_length_reads_back(seconds: float):
    assert seconds_of(span_text(seconds)) == pytest.approx(seconds, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("1.5s", 1.5),
        (" 5m ", 300),
        ("5min", 300),
        ("2h", 7200),
        ("30d", 2592000),
        ("1", None),
        ("s", None),
        (1, None),
        ("-1s", None),
    ],
)
def test_lengths_have_a_unit(text, seconds):
    assert seconds_of(text) == seconds


def test_every_kind_says_what_it_is():
    assert set(TIMED) < set(KINDS)
    assert all(KINDS.values())
