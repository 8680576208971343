"""`weaklink alerts`: objectives and their alerts from a shell. Heavy modules are imported where a verb needs them."""

import getpass
import json
import math
import time
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Objectives (SLO): burn, alerts with their diagnosis, rules for Prometheus."
)

QUIET: Final = 0
WRONG: Final = 1
FIRING: Final = 3


class Format(StrEnum):
    """How a verb prints."""

    TEXT = "text"
    JSON = "json"


StorePath = Annotated[
    Path | None,
    typer.Option("--store", help="The DuckDB file. [default: weaklink.duckdb in the user's data folder]", show_default=False),
]
SloFile = Annotated[
    Path | None, typer.Option("--config", "--slo", help="The TOML file with [[slo]] and [[notify]].", show_default=False)
]
Output = Annotated[Format, typer.Option("--format", help="Output format.")]


def _fail(message: str) -> NoReturn:
    typer.echo(f"weaklink: {message}", err=True)
    raise typer.Exit(WRONG)


def _open(ctx: typer.Context, path: Path | None) -> AbstractContextManager[Any]:
    """The store that is named, else the default one, which the main command line knows."""
    from app.store import Store, StoreError

    try:
        return Store(path or ctx.obj())
    except StoreError as error:
        _fail(str(error))


def _read(path: Path | None) -> Any:
    from app.alerts.definitions import Definitions, read
    from app.alerts.table import DefinitionError

    try:
        return read(path) if path else Definitions()
    except DefinitionError as error:
        _fail(str(error))


def _instant(text: str | None, name: str) -> float | None:
    from app.alerts.explain import instant

    found = instant(text) if text is not None else None
    if text is not None and found is None:
        _fail(f"{name}: cannot read {text!r}; expected 2026-11-29T15:33:00Z or epoch seconds")
    return found


@app.command()
def check(
    ctx: typer.Context,
    store: StorePath = None,
    slo: SloFile = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="Judge this instant instead (ISO 8601, epoch seconds, or newest); nothing is written or sent.",
            show_default=False,
        ),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Evaluate every objective once, and send what is due. For cron, where no server runs.

    Exit status: 0 nothing fires, 3 something fires, 1 wrong arguments.
    """
    from app.alerts import evaluate, notify, preview
    from app.alerts.explain import newest

    definitions = _read(slo)
    with _open(ctx, store) as opened:
        if at is None:
            found = evaluate.evaluate(opened, definitions, time.time())
            notify.deliver(opened, definitions)
            for fault in notify.check(definitions.notifiers):
                typer.echo(f"weaklink: {fault}", err=True)
        else:
            when = newest(opened) if at == "newest" else _instant(at, "--at")
            if when is None:
                _fail("--at newest: nothing in the store carries a clock")
            found = preview.judged_at(opened, definitions, when)
        lines = [_line(one, opened if at is None else None) for one in found]
        if output is Format.JSON:
            typer.echo(json.dumps([{"slo": one.slo.name, "at": one.at, **one.table()} for one in found], indent=1))
        else:
            typer.echo("\n".join(lines) or "no objective is defined: give --slo FILE, or add one in the dashboard")
    if any(one.phase == "firing" for one in found):
        raise typer.Exit(FIRING)


def _line(status: Any, store: Any) -> str:
    """One objective on a line, with the diagnosis of what fires below it."""
    from analyzers.slo import SAYS
    from app.alerts import history
    from app.alerts.evaluate import loudest

    severity = status.severity or next(iter(status.states))
    burn = loudest(status, severity)
    rate = "no events" if burn.long_burn is None else f"burn {burn.long_burn:.1f} (fires above {burn.factor:.3g})"
    left = "" if status.budget.left_ratio is None else f", budget left {100 * status.budget.left_ratio:.1f} %"
    said = f"{status.phase.upper():<8}{status.severity or '':<7} {status.slo.name}: {status.missing or f'{SAYS[burn.verdict]}; {rate}{left}'}"
    alert = history.open_alert(store, status.slo.name, severity) if store is not None and status.severity else None
    return said + (f"\n{'':16} {alert.diagnosis.get('says', '')}\n{'':16} {alert.diagnosis.get('url', '')}" if alert else "")


@app.command()
def preview(
    ctx: typer.Context,
    slo: Annotated[Path, typer.Option("--config", "--slo", help="The TOML file with [[slo]] and [[notify]].")],
    store: StorePath = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Start of the span: ISO 8601 (UTC) or epoch seconds.", show_default=False)
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="End of the span.", show_default=False)] = None,
    interval: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds between evaluations. [default: the file's]", show_default=False)
    ] = None,
    notifier: Annotated[
        str | None,
        typer.Option(help="Also show the message that this [[notify]] would send for the first alert.", show_default=False),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Tell how often each objective would have fired in what the store holds. Nothing is written or sent."""
    from app.alerts import preview as previews

    definitions = _read(slo)
    low, high = _instant(start, "--from"), _instant(end, "--to")
    span = (-math.inf if low is None else low, math.inf if high is None else high)
    with _open(ctx, store) as opened:
        found = [previews.preview(opened, one, *span, interval or definitions.interval_s) for one in definitions.slos]
        if output is Format.JSON:
            typer.echo(json.dumps([one.table() for one in found], indent=1))
        else:
            typer.echo("\n".join(one.said() for one in found))
        if notifier is not None:
            _message(opened, definitions, found, span, notifier)


def _message(store: Any, definitions: Any, found: list[Any], span: tuple[float, float], name: str) -> None:
    """The message of the first alert, by a notifier's templates."""
    from app.alerts import message
    from app.alerts.preview import sample

    notifier = next((one for one in definitions.notifiers if one.name == name), None)
    if notifier is None:
        _fail(f"--notifier: no [[notify]] is called {name!r}")
    first = next((one for one in found if one.episodes), None)
    if first is None:
        _fail("--notifier: no alert would have fired, so there is no message to show")
    alert = sample(store, definitions, first, *span)
    title, text = message.rendered(notifier, message.fields(first.slo, alert, "firing", first.budget.left_ratio))
    typer.echo(f"\n{title}\n{text}", nl=False)


@app.command()
def export(
    ctx: typer.Context,
    slo: SloFile = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Write recording and alerting rules for Prometheus (YAML).", show_default=False)
    ] = None,
    grafana: Annotated[Path | None, typer.Option(help="Write a Grafana dashboard (JSON).", show_default=False)] = None,
    store: StorePath = None,
    output: Output = Format.TEXT,
) -> None:
    """Write the objectives as rules for a stock Prometheus, or a Grafana dashboard of the main panels.

    Bucket edges are the store's where it holds the histograms, else vLLM's defaults.
    """
    from app.alerts import export as exports
    from app.alerts import grafana as dashboards
    from app.alerts import history

    if to is None and grafana is None:
        _fail("name what to write: --to rules.yml or --grafana panel.json")
    definitions = _read(slo)
    with _open(ctx, store) as opened:
        slos = history.all_slos(opened, definitions)
        rules = exports.rules(slos, definitions, exports.edges_in(opened, slos))
    if to is not None:
        to.write_text(rules.text, encoding="utf-8")
    if grafana is not None:
        grafana.write_text(dashboards.dashboard(slos), encoding="utf-8")
    files = [str(path) for path in (to, grafana) if path is not None]
    if output is Format.JSON:
        typer.echo(json.dumps({"written": files, "left_out": rules.left_out, "notes": rules.notes}, indent=1))
        return
    for line in (*(f"written: {name}" for name in files), *rules.notes, *(f"left out: {line}" for line in rules.left_out)):
        typer.echo(line)


@app.command("list")
def show(ctx: typer.Context, store: StorePath = None, slo: SloFile = None, output: Output = Format.TEXT) -> None:
    """List objectives, alerts (newest first), silences, and notifications that wait or were given up."""
    from app.alerts import history, outbox
    from app.alerts.explain import clock

    definitions = _read(slo)
    with _open(ctx, store) as opened:
        slos, status = history.all_slos(opened, definitions), history.statuses(opened)
        found, quiet, letters = history.alerts(opened), history.silences(opened, time.time()), outbox.held(opened)
    if output is Format.JSON:
        typer.echo(json.dumps(_listed(slos, status, found, quiet, letters), indent=1))
        return
    for one in slos:
        typer.echo(f"{status.get(one.name, {}).get('phase', 'not evaluated'):<14} {one.name}")
    for alert in found:
        ended = f"resolved {clock(alert.resolved_ts)}" if alert.resolved_ts is not None else "firing"
        seen = f", acknowledged by {alert.acknowledged_by}" if alert.acknowledged_by else ""
        typer.echo(
            f"{alert.alert_id:>5}  {clock(alert.fired_ts)}  {alert.severity:<7}{alert.slo}: {ended}{seen} ({alert.origin})"
        )
        typer.echo(f"{'':7}{alert.diagnosis.get('says', '')}")
    for number, silence, reason in quiet:
        typer.echo(f"silence {number}: {silence.slo or 'all objectives'} until {clock(silence.end)}: {reason}")
    for letter in letters:
        if letter.sent_ts is None:
            state = "given up" if letter.dead_ts is not None else "waits"
            typer.echo(
                f"notification {letter.outbox_id} of alert {letter.alert_id} to {letter.notifier}: {state} after {letter.attempts} attempts ({letter.error})"
            )


def _listed(slos: Any, status: Any, found: Any, quiet: Any, letters: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from app.alerts.definitions import table_of

    return {
        "slos": [{**table_of(one), "status": status.get(one.name)} for one in slos],
        "alerts": [asdict(alert) for alert in found],
        "silences": [{"id": number, **asdict(silence), "reason": reason} for number, silence, reason in quiet],
        "notifications": [{name: value for name, value in asdict(letter).items() if name != "body"} for letter in letters],
    }


@app.command()
def ack(
    ctx: typer.Context,
    alert_id: Annotated[int, typer.Argument(help="The alert's number, as `alerts list` shows it.", metavar="ID")],
    store: StorePath = None,
    by: Annotated[str | None, typer.Option(help="Who looks after it. [default: the user]", show_default=False)] = None,
    output: Output = Format.TEXT,
) -> None:
    """Acknowledge an alert: somebody looks after it."""
    from app.alerts import history
    from app.alerts.table import DefinitionError

    with _open(ctx, store) as opened:
        try:
            found = history.acknowledge(opened, alert_id, by or getpass.getuser())
        except DefinitionError as error:
            _fail(str(error))
    said = {"alert": found.alert_id, "acknowledged_by": found.acknowledged_by, "acknowledged_ts": found.acknowledged_ts}
    typer.echo(
        json.dumps(said) if output is Format.JSON else f"alert {found.alert_id} is acknowledged by {found.acknowledged_by}"
    )


@app.command()
def silence(
    ctx: typer.Context,
    store: StorePath = None,
    slo: Annotated[str | None, typer.Option("--slo", help="Name of the objective. [default: all]", show_default=False)] = None,
    severity: Annotated[str | None, typer.Option(help="page or ticket. [default: both]", show_default=False)] = None,
    lasts: Annotated[str, typer.Option("--for", help='How long, such as "2h".')] = "2h",
    start: Annotated[str | None, typer.Option("--from", help="When it begins. [default: now]", show_default=False)] = None,
    reason: Annotated[str, typer.Option(help="Why; shown in the list.")] = "no reason given",
    end: Annotated[int | None, typer.Option("--end", help="End the silence of this number instead.", show_default=False)] = None,
    output: Output = Format.TEXT,
) -> None:
    """Send nothing for a while; alerts are still recorded, and told when it ends if they still fire."""
    from analyzers.alert import Silence
    from analyzers.slo import SEVERITIES
    from app.alerts import history
    from app.alerts.table import seconds_of

    seconds, begins = seconds_of(lasts), _instant(start, "--from")
    if seconds is None:
        _fail(f'--for: expected a length with its unit, such as "2h", got {lasts!r}')
    if severity not in {None, *SEVERITIES}:
        _fail(f"--severity: expected one of {', '.join(SEVERITIES)}, got {severity!r}")
    with _open(ctx, store) as opened:
        if end is not None:
            if not history.end_silence(opened, end, time.time()):
                _fail(f"--end: no silence {end} goes on")
            number = end
        else:
            first = time.time() if begins is None else begins
            number = history.silence(opened, Silence(slo, severity, first, first + seconds), reason)
    ended = "ended" if end is not None else f"lasts {lasts}"
    typer.echo(json.dumps({"silence": number, "state": ended}) if output is Format.JSON else f"silence {number} {ended}")
