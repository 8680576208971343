"""What the Alerts page says: objectives with their budgets, alerts with their diagnosis, the history. Markup only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from analyzers.slo import KINDS, STUCK, UNSEEN, Slo
from app.alerts.history import Alert
from app.alerts.message import objective
from app.alerts.outbox import Letter
from app.alerts.preview import Preview
from app.ui.markup import Html, bold, div, join, link, row, table, tag
from app.ui.words import DASH, TITLES, clock, flagged, length, number, percent, plural, span, value, zone

PHASES: Final = {"firing": "●", "pending": "◐", "quiet": "○"}
SOURCES: Final = {True: "file", False: "dashboard"}


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective as the page shows it: its last evaluation (None: not evaluated), and what it would have done in the window."""

    slo: Slo
    filed: bool
    status: Mapping[str, Any] | None
    preview: Preview


def head(found: Sequence[Objective], firing: Sequence[Alert], every_s: float | None) -> Html:
    """What burns, and who evaluates."""
    if not found:
        title = "No objective is defined yet."
    elif firing:
        count = len({alert.slo for alert in firing})
        title = f"{plural(count, 'objective')} {'burns its' if count == 1 else 'burn their'} error budget too fast."
    elif every_s is not None and all(unknown(one.status) for one in found):
        title = "Nothing is observed now."
    else:
        title = "Nothing burns its error budget too fast."
    by_hand = [tag("code", "weaklink serve --slo FILE"), " or ", tag("code", "weaklink alerts check"), " from cron."]
    if every_s is None:
        said = join(
            ["Nobody evaluates here now; what each objective does in the window is shown below. To be alerted: ", *by_hand]
        )
    else:
        said = join([f"Evaluated every {length(every_s)} by this server."])
    return div("wl-answer", tag("h1", title), tag("p", said), data_alerts=str(len(firing)))


def unknown(status: Mapping[str, Any] | None) -> str | None:
    """Why the state of an objective is unknown; None where it is known."""
    if status is None:
        return "not evaluated"
    if status.get("missing"):
        return "cannot be measured"
    verdicts = {state["verdict"] for state in status["states"].values()}
    return "no data now" if UNSEEN in verdicts else "requests in flight, none measured" if STUCK in verdicts else None


def listed(found: Sequence[Objective]) -> Html:
    """The table of objectives."""
    heads = (
        ("objective", ""), ("state now", ""), ("budget left now", "num"), ("bad in this window", "num"), ("of what may be", "num"),
        ("would have fired in it", ""),
    )  # fmt: skip
    return table(heads, [_objective(one) for one in found])


def _objective(one: Objective) -> Html:
    status, seen = one.status, one.preview
    phase, why = str(status["phase"]) if status else "", unknown(status)
    state = f"{PHASES[phase]} {phase}" if phase and (phase != "quiet" or not why) else "?"
    state += f" ({status['severity']})" if status and status.get("severity") else ""
    state += f" {why}" if why else ""
    left = status["budget"]["left_ratio"] if status else None
    name = join([bold(one.slo.name), tag("br"), tag("span", _said(one), look="wl-soft")])
    bad = "unknown" if seen.missing or not seen.budget.total else percent(seen.budget.bad / seen.budget.total)
    burn = _of_budget(seen)
    cells = (name, state, DASH if left is None else percent(left) if left >= 0 else spent(left), bad, burn, fired(seen))
    return row(cells, numbers=(2, 3, 4), heads={1: "now", 2: "left", 3: "bad", 4: "of budget", 5: "would have fired"})


def _said(one: Objective) -> str:
    where = ", ".join(filter(None, (one.slo.model, one.slo.engine)))
    return f"{objective(one.slo)}{f'; {where}' if where else ''} · {SOURCES[one.filed]}"


def spent(left: float) -> str:
    """An overspent budget in words."""
    return f"spent {number(1 - left, 2)} times"


def _of_budget(seen: Preview) -> str:
    """How many times the share that may be bad was bad."""
    if seen.missing or not seen.budget.total:
        return DASH
    return f"{number(seen.budget.bad / seen.budget.total / seen.slo.budget_ratio, 2)} times"


def fired(seen: Preview) -> Html:
    """How often an objective would have fired in the window, and when."""
    if seen.missing:
        return join([f"cannot be measured: {seen.missing}"])
    if not seen.episodes:
        return join(["not once"])
    found = [f"{one.severity} {clock(one.fired_ts)}" for one in seen.episodes[:3]]
    more = len(seen.episodes) - len(found)
    return join([bold(plural(len(seen.episodes), "time")), ": ", ", ".join(found), f" and {more} more" if more > 0 else ""])


def previewed(seen: Preview) -> Html:
    """The answer to "what would this objective do": in sentences, with what is uncertain."""
    if seen.missing or seen.start is None or seen.end is None:
        return div(
            "wl-answer",
            tag("p", bold("It cannot be measured here: "), seen.missing or "nothing was observed"),
            data_preview="none",
        )
    times = len(seen.episodes)
    title = "It would not have fired in this data." if not times else f"It would have fired {plural(times, 'time')} in this data."
    share = seen.budget.bad / seen.budget.total if seen.budget.total else 0.0
    said = [
        f"{seen.budget.bad:,.0f} of {seen.budget.total:,.0f} events were bad ({percent(share)}; {_of_budget(seen)} what may be), from {seen.source}, "
    ]
    said.append(f"evaluated every {length(seen.interval_s)} over {span(seen.start, seen.end)}.")
    lines = [
        f"{one.severity}: {clock(one.fired_ts)}, burn up to {number(one.peak_burn)}; "
        + (f"resolved {clock(one.resolved_ts)}" if one.resolved_ts is not None else "not resolved by the end")
        for one in seen.episodes
    ]
    notes = tag("ul", *(tag("li", line) for line in [*lines, *seen.uncertain()]), look="wl-notes")
    return div("wl-answer", tag("p", bold(title)), tag("p", *said), notes, data_preview=str(times))


# -- alerts -------------------------------------------------------------------------------------------------------------------
def window_link(alert: Alert) -> str:
    """The Overview at the window of an alert."""
    return f"./?{str(alert.diagnosis.get('url', '')).partition('?')[2]}"


def alert_card(alert: Alert, slo: Slo | None, happened: Sequence[tuple[float, str, str]]) -> Html:
    """An alert with its diagnosis: what limits, since when, what shows it, what to try."""
    found = alert.diagnosis
    burn = f"burn {number(alert.burn)} over {length(found['long_s'])}" if alert.burn is not None and found.get("long_s") else ""
    when = (
        f"since {clock(alert.fired_ts, day=True)} {zone()}"
        if alert.firing
        else f"{clock(alert.fired_ts, day=True)} {DASH} {clock(alert.resolved_ts or 0.0)} {zone()}"
    )
    facts = [alert.severity, when, burn, objective(slo) if slo else "", "a replay" if alert.origin == "replay" else ""]
    title = tag("p", bold(alert.slo), " · ", " · ".join(filter(None, facts)))
    return join([
        div("wl-answer", title, tag("h2", _headline(found)), tag("p", *_measured(alert))),
        _tries(found), _more(found, happened),
    ], "")  # fmt: skip


def _headline(found: Mapping[str, Any]) -> Html:
    """The sentence of the diagnosis, the limiting link in the colour of judgement where it is a fault."""
    says = str(found.get("says", ""))
    title = TITLES.get(str(found.get("link")), "")
    if title and title in says and found.get("verdict") in {"limited", "waiting"}:
        before, _, after = says.partition(title)
        return join([before, tag("em", title), after])
    return join([says])


def _measured(alert: Alert) -> list[Html]:
    found = alert.diagnosis
    said = [join([f"Began {clock(alert.began_ts)} {zone()}; ", str(found.get("events", "")), ". "])]
    if found.get("before_s") is not None and found.get("measured_s") is not None:
        said.append(
            join(
                [
                    f"Mean before it began: {value(found['target'], found['before_s'])}, since then {value(found['target'], found['measured_s'])}. "
                ]
            )
        )
    if found.get("changed"):
        said.append(join(["What changed: ", "; ".join(found["changed"]), ". "]))
    if found.get("measure"):
        said.append(join(["To settle it: ", "; ".join(found["measure"]), ". "]))
    said.append(link(window_link(alert), "Open its window in the Overview"))
    return said


def _tries(found: Mapping[str, Any]) -> Html:
    pairs = found.get("tries") or []
    if not pairs:
        return join([])
    lines = [tag("div", bold(flagged(what)), tag("span", f": {cost}") if cost else "") for what, cost in pairs[:4]]
    return join([div("wl-title", "What to try, and what it costs next door"), div("wl-try", *lines)])


def _more(found: Mapping[str, Any], happened: Sequence[tuple[float, str, str]]) -> Html:
    """Evidence and history, folded."""
    evidence = [tag("li", line) for line in found.get("evidence") or []]
    lines = [tag("li", f"{clock(ts, day=True)} {kind}: {said}") for ts, kind, said in happened]
    shown = [*([tag("p", bold("Evidence")), tag("ul", *evidence, look="wl-notes")] if evidence else [])]
    shown += [tag("p", bold("History")), tag("ul", *lines, look="wl-notes")] if lines else []
    return tag("details", tag("summary", "Evidence and history"), *shown) if shown else join([])


def history(alerts: Sequence[Alert]) -> Html:
    """All alerts, newest first."""
    heads = (
        ("fired", ""),
        ("objective", ""),
        ("severity", ""),
        ("lasted", "num"),
        ("burn", "num"),
        ("diagnosis", ""),
        ("window", ""),
    )
    rows = []
    for alert in alerts:
        ongoing = "firing" if alert.origin == "live" else "to the end"
        lasted = length(alert.resolved_ts - alert.fired_ts) if alert.resolved_ts is not None else ongoing
        acknowledged = f"; acknowledged by {alert.acknowledged_by}" if alert.acknowledged_by else ""
        origin = " (replay)" if alert.origin == "replay" else ""
        cells = (
            clock(alert.fired_ts, day=True), f"{alert.slo}{origin}", alert.severity, lasted, DASH if alert.burn is None else number(alert.burn),
            f"{alert.diagnosis.get('says', '')}{acknowledged}", link(window_link(alert), "open"),
        )  # fmt: skip
        rows.append(row(cells, numbers=(3, 4), look="" if alert.firing and alert.origin == "live" else "quiet"))
    return table(heads, rows)


def undelivered(letters: Sequence[Letter]) -> Html:
    """Notifications that wait or were given up."""
    lines = [
        f"{one.kind} of alert {one.alert_id} to {one.notifier}: {'given up' if one.dead_ts is not None else 'waits'} after "
        f"{plural(one.attempts, 'attempt')}{f' ({one.error})' if one.error else ''}"
        for one in letters
    ]
    return join(
        [
            div("wl-title", "Notifications that were not delivered"),
            tag("ul", *(tag("li", line) for line in lines), look="wl-notes"),
        ]
    )


def kind_label(kind: str) -> str:
    """A kind of objective as the form offers it."""
    short = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E"}.get(kind, kind.capitalize())
    return f"{short}: {KINDS[kind]}"
