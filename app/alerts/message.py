"""The words of a notification: fields, and templates over them that an operator may replace ([[notify]] title and text)."""

import re
from string import Template
from typing import Any, Final

from analyzers.slo import Slo
from app.alerts.definitions import TEMPLATE_FIELDS, Notifier, table_of
from app.alerts.explain import clock
from app.alerts.history import Alert
from app.alerts.table import span_text

TITLE: Final = "[$state] $slo: $headline"
TEXT: Final = """$diagnosis
$headline
Began $began; fired $fired$resolved. Budget left: $budget_left.
$evidence
Try: $tries
$link
"""
LABELS: Final = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E", "queue": "Queue time"}
STATES: Final = {"firing": "FIRING", "resolved": "RESOLVED", "diagnosed": "DIAGNOSED"}


def words(seconds: float) -> str:
    """A length for people: "1 s", "30 d"."""
    return re.sub(r"(?<=\d)(?=[a-z])", " ", span_text(seconds))


def objective(slo: Slo) -> str:
    """An objective in words: "99 % of TTFT at most 1 s over 30 d"."""
    share = f"{100 * slo.objective:.6g} %"
    over = f" over {words(slo.period_s)}"
    limit = words(slo.threshold_s) if slo.threshold_s is not None else ""
    if slo.kind == "goodput":
        return f"{share} of requests with TTFT at most {limit} and TPOT at most {words(slo.tpot_s or 0.0)}{over}"
    if slo.kind == "errors":
        return f"{share} of requests neither failed nor aborted{over}"
    if slo.kind == "availability":
        return f"{share} of scrapes answered{over}"
    return f"{share} of {LABELS[slo.kind]} at most {limit}{over}"


def headline(slo: Slo | None, alert: Alert) -> str:
    """What burns, and how fast."""
    if alert.burn is None:
        return "the error budget burns too fast"
    burn = f"burns its error budget {alert.burn:.1f} times too fast"
    window = alert.diagnosis.get("long_s")
    return f"{objective(slo) if slo else alert.slo}: {burn}" + (f" (over {words(float(window))})" if window else "")


def fields(slo: Slo | None, alert: Alert, kind: str, budget_left: float | None) -> dict[str, str]:
    """Everything that a template may show, as text."""
    found = alert.diagnosis
    before, measured = found.get("before_s"), found.get("measured_s")
    than = f" Before it began the mean was {_seconds(before)}." if before is not None and measured is not None else ""
    changed = f" What changed: {'; '.join(found['changed'])}." if found.get("changed") else ""
    untold = f" Measure: {'; '.join(found['measure'])}." if found.get("measure") else ""
    return {
        "headline": headline(slo, alert),
        "slo": alert.slo,
        "severity": alert.severity,
        "state": STATES[kind],
        "objective": objective(slo) if slo else "",
        "burn": "" if alert.burn is None else f"{alert.burn:.1f}",
        "budget_left": "unknown" if budget_left is None else f"{100 * budget_left:.1f} %",
        "diagnosis": f"{found.get('says', '')}{than}{changed}{untold}",
        "evidence": "; ".join([*filter(None, [found.get("events")]), *found.get("evidence", [])][:4]),
        "tries": "; ".join(f"{what} (costs: {cost})" if cost else what for what, cost in found.get("tries", [])[:2])
        or "nothing yet",
        "began": clock(alert.began_ts),
        "fired": clock(alert.fired_ts),
        "resolved": "" if alert.resolved_ts is None else f"; resolved {clock(alert.resolved_ts)}",
        "link": str(found.get("url", "")),
    }


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if abs(value) < 0.1 else f"{value:.3g} s"


def rendered(notifier: Notifier, found: dict[str, str]) -> tuple[str, str]:
    """Title and text of a message, by the notifier's templates."""
    known = {name: found.get(name, "") for name in TEMPLATE_FIELDS}
    title = Template(notifier.title or TITLE).safe_substitute(known)
    text = Template(notifier.text or TEXT).safe_substitute(known)
    return " ".join(title.split()), text.strip() + "\n"


def body(slo: Slo | None, alert: Alert, kind: str, token: str, budget_left: float | None) -> dict[str, Any]:
    """A notification as the outbox keeps it: plain values, without templates."""
    return {
        "version": 1,
        "id": token,
        "kind": kind,
        "alert": {
            "id": alert.alert_id, "slo": alert.slo, "severity": alert.severity, "began_ts": alert.began_ts, "fired_ts": alert.fired_ts,
            "resolved_ts": alert.resolved_ts, "burn": alert.burn,
        },
        "slo": table_of(slo) if slo else None,
        "diagnosis": alert.diagnosis,
        "fields": fields(slo, alert, kind, budget_left),
    }  # fmt: skip
