"""From what is asked to a file: the incident gathered, redacted, drawn in a format; with its data as a bundle that was tried."""

import json
import math
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from analyzers.model import Window
from analyzers.slo import Slo
from app.alerts import history
from app.alerts.measure import scope
from app.extract import Extract, extract
from app.incident import incident_for
from app.incident.kept import Asked
from app.ingest import load
from app.pipeline import window_of
from app.redact import Redactor, redacted, redactor_of
from app.reports.charts import charts, of_evidence
from app.reports.document import document
from app.reports.markdown import text
from app.reports.page import sections
from app.reports.pdf import paper
from app.reports.sheet import page
from app.reports.words import stamp
from app.store import Store

FORMATS: Final = {"html": "text/html", "md": "text/markdown", "json": "application/json", "pdf": "application/pdf"}
JUDGED: Final = ("targets", "engines", "window", "requests")  # what the data must give again
Progress = Callable[[str], None]


class AlertError(ValueError):
    """No alert has this number."""


@dataclass(frozen=True, slots=True)
class Report:
    """A report before it is drawn: its document, the words that stand for names (None: not redacted), the data beside it.

    `verdict` is the summary sentence with the names that it has here.
    """

    verdict: str
    plain: dict[str, Any]
    redactor: Redactor | None
    data: Extract | None

    @property
    def summary(self) -> str:
        """The verdict as a sentence."""
        return str(sections(self.plain)["summary"])


def report(
    store: Store,
    asked: Asked,
    *,
    results: Sequence[Mapping[str, Any]] = (),
    named: Sequence[str] = (),
    baseline: Window | None = None,
    baseline_name: str = "",
    redact: bool = True,
    with_data: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Make a report of a window of the store.

    `results` and `named` are the files that were loaded for it and how the command names them, `baseline` a window of another
    store. `with_data` is the name of the bundle that will lie beside the report.
    """
    say = progress or (lambda _: None)
    objectives, marks = _of_alert(store, asked)
    before, name = baseline, baseline_name
    if before is None and asked.baseline is not None:
        before = window_of(store, *asked.baseline, asked.baseline_engines)
        name = f"{stamp(asked.baseline[0]) or 'the beginning'} to {stamp(asked.baseline[1]) or 'the end'}"
    incident = incident_for(
        store, asked.start, asked.end, asked.engines, results=results, title=asked.title, note=asked.note, slo=asked.slo,
        command=command(asked, named, baseline_name), objectives=objectives, baseline=before if before is None or before.engines else None,
        baseline_name=name, marks=marks, progress=say,
    )  # fmt: skip
    plain = document(incident)
    verdict = str(sections(plain)["summary"])
    redactor = redactor_of(plain) if redact else None
    if redactor is not None:
        say("replacing names")
        plain = redacted(plain, redactor)
    data = None
    if with_data:
        say("packing the data")
        data = _data(store, asked, plain, incident.attribution.engines, redactor)
        say("loading the data again")
        plain["data"] = {
            "name": with_data,
            "sha256": data.sha256,
            "bytes": len(data.data),
            "says": _tried(data, asked, plain, redactor),
        }
        plain["data"]["command"] = command(_again(asked, redactor), [with_data])
        if redactor is not None:
            plain["replaced"] = redactor.counted()
    return Report(verdict, plain, redactor, data)


def _of_alert(store: Store, asked: Asked) -> tuple[list[Slo], list[tuple[float, str]]]:
    """The objective that fired, and when it did."""
    if asked.alert_id is None:
        return [], []
    alert = history.alert_of(store, asked.alert_id)
    if alert is None:
        raise AlertError(f"no alert has the number {asked.alert_id}")
    marks = [
        (alert.began_ts, f"alert {alert.slo}: the burn began"),
        (alert.fired_ts, f"alert {alert.slo} fired ({alert.severity})"),
    ]
    if alert.resolved_ts is not None:
        marks.append((alert.resolved_ts, f"alert {alert.slo} resolved"))
    return [slo for slo in history.saved(store) if slo.name == alert.slo], marks


def of_alert(store: Store, number: int) -> Asked:
    """What a report of an alert is asked of: the window that its diagnosis read, and as long before it as the baseline."""
    alert = history.alert_of(store, number)
    if alert is None:
        raise AlertError(f"no alert has the number {number}")
    found = alert.diagnosis
    start, end = _known(found.get("start"), alert.began_ts), _known(found.get("end"), alert.resolved_ts, alert.fired_ts)
    if not start < end:
        start, end = alert.began_ts - 60.0, end + 60.0
    slo = next((one for one in history.saved(store) if one.name == alert.slo), None)
    engines = scope(store, slo).engines if slo is not None else ()
    title = f"Alert {alert.slo}: {found.get('says', '')}".rstrip(": ")
    return Asked(
        start, end, tuple(engines) or None, title, alert_id=number, baseline=(start - (end - start), start), baseline_engines=tuple(engines) or None
    )  # fmt: skip


def _known(*values: float | None) -> float:
    """The first value that is known."""
    return next((float(value) for value in values if value is not None), math.nan)


def command(asked: Asked, named: Sequence[str] = (), baseline: str = "") -> str:
    """The command that makes this report again."""
    words = ["weaklink", "report", *named]
    if asked.alert_id is not None and not named:
        words += ["--alert", str(asked.alert_id)]
    else:
        words += [
            word for flag, ts in (("--from", asked.start), ("--to", asked.end)) if ts is not None for word in (flag, _exact(ts))
        ]
        words += [word for name in asked.engines or () for word in ("--engine", name)]
    words += [word for name, seconds in asked.slo.items() for word in ("--slo", f"{name}={seconds:g}")]
    words += ["--baseline", baseline] if baseline else []
    return shlex.join(words)


def _exact(ts: float) -> str:
    """An instant such that reading it again gives the same number."""
    return repr(ts)


# -- data -----------------------------------------------------------------------------------------------------------------------
def _data(store: Store, asked: Asked, plain: Mapping[str, Any], engines: Sequence[Any], redactor: Redactor | None) -> Extract:
    instances = sorted({engine.instance for engine in engines})
    said = {
        "title": "Data of an incident report",
        "kind": "extract of a recording",
        "weaklink": plain["weaklink"],
        "start": plain["window"]["start"] or "",
        "end": plain["window"]["end"] or "",
        "redacted": redactor is not None,
    }
    return extract(store, instances, *_bounds(asked), redactor=redactor, manifest=said)


def _bounds(asked: Asked) -> tuple[float, float]:
    return (-math.inf if asked.start is None else asked.start, math.inf if asked.end is None else asked.end)


def _again(asked: Asked, redactor: Redactor | None) -> Asked:
    """What to ask of the data: the same window, engines by their words."""
    engines = asked.engines
    if engines is not None and redactor is not None:
        engines = tuple(redactor.text(name) for name in engines)
    return Asked(asked.start, asked.end, engines, slo=asked.slo)


def _tried(data: Extract, asked: Asked, plain: Mapping[str, Any], redactor: Redactor | None) -> str:
    """What comes of loading the data into an empty store: the same judgement, or in what it differs."""
    with tempfile.TemporaryDirectory(prefix="weaklink-") as folder, Store() as fresh:
        path = Path(folder) / "data.zip"
        path.write_bytes(data.data)
        load(fresh, [path])
        same = _again(asked, redactor)
        again = document(incident_for(fresh, same.start, same.end, same.engines, slo=same.slo, command="again"))
    differs = [name for name in JUDGED if json.dumps(again[name], sort_keys=True) != json.dumps(plain[name], sort_keys=True)]
    return (
        "loaded into an empty store it gives the same judgement"
        if not differs
        else f"loaded again it differs in: {', '.join(differs)}"
    )


# -- files ----------------------------------------------------------------------------------------------------------------------
def drawn(plain: Mapping[str, Any], output: str) -> bytes:
    """A document as html, md, json or pdf."""
    if output == "pdf":
        return paper(plain)
    made = (
        page(plain)
        if output == "html"
        else text(plain)
        if output == "md"
        else json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )
    return made.encode()


def write(plain: Mapping[str, Any], output: str, out: Path | None) -> list[Path]:
    """Write a document; the files written (none: standard output). Markdown gets its charts beside it."""
    if output == "pdf" and out is None:
        out = Path("incident.pdf")
    if output == "md" and out is not None:
        return _markdown(plain, out)
    made = drawn(plain, output)
    if out is None:
        sys.stdout.buffer.write(made)
        sys.stdout.buffer.flush()
        return []
    out.write_bytes(made)
    return [out]


def _markdown(plain: Mapping[str, Any], out: Path) -> list[Path]:
    """Markdown with each chart as an SVG file in a folder of its name."""
    folder = out.with_name(f"{out.stem}-charts")
    images, written = {}, [out]
    every = [*charts(plain), *(chart for one in plain.get("evidence", []) for chart in of_evidence(one))]
    for at, chart in enumerate(every, 1):
        if not chart["svg"]:
            continue
        folder.mkdir(exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", chart["title"].lower()).strip("-")[:50]
        path = folder / f"{at:02d}-{name}.svg"
        path.write_text(chart["svg"].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1), encoding="utf-8")
        images[chart["key"]] = f"{folder.name}/{path.name}".replace(" ", "%20")
        written.append(path)
    out.write_text(text(plain, images), encoding="utf-8")
    return written


def schema_text() -> str:
    """The JSON Schema of the json format."""
    return files("app.reports").joinpath("incident.schema.json").read_text(encoding="utf-8")
