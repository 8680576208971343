"""The command line: thin verbs, each calls one function of the app. Heavy modules are imported where a verb needs them."""

import json
import math
import re
import sys
import tempfile
import time
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer

from app import operating
from app.alerts.cli import app as alerts
from app.experiments import cli as experiments
from app.operating import default_store

app = typer.Typer(
    name="weaklink",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Names the link of the token-state chain that limits a vLLM deployment's latency, in seconds.",
)

NOTHING_USABLE = 2
SHOWN = "prefill_backlog"  # the incident that the demo opens


class Format(StrEnum):
    """How a verb prints."""

    TEXT = "text"
    JSON = "json"


class TargetName(StrEnum):
    """A latency target."""

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"


Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Bundles: folders, .zip, .tar.gz, or single files (/metrics texts, logs, spans, request lines).", show_default=False
    ),
]
StorePath = Annotated[
    Path | None,
    typer.Option("--store", help="The DuckDB file. [default: weaklink.duckdb in the user's data folder]", show_default=False),
]
Output = Annotated[Format, typer.Option("--format", help="Output format.")]
Instance = Annotated[
    list[str] | None,
    typer.Option(
        "--instance", help="NAME=HOST:PORT: which server wrote the file NAME, where the bundle does not say.", show_default=False
    ),
]
Targets = Annotated[
    list[str] | None, typer.Option("--target", help="A vLLM server: host:port, or the URL of its /metrics.", show_default=False)
]
Seconds = Annotated[
    float | None, typer.Option("--for", help="End after so many seconds. [default: at Ctrl-C]", show_default=False)
]
Interval = Annotated[float, typer.Option("--interval", min=0.1, max=60, help="Seconds between two scrapes of a target.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="The TOML file: targets, servers, objectives, notifiers.", show_default=False)
]


app.add_typer(alerts, name="alerts", context_settings={"obj": default_store})
app.add_typer(experiments.experiment, name="experiment", context_settings={"obj": default_store})


def _fail(message: str, status: int = NOTHING_USABLE) -> NoReturn:
    typer.echo(f"weaklink: {message}", err=True)
    raise typer.Exit(status)


def _instant(text: str | None) -> float | None:
    """ISO 8601 (UTC where no zone is given) or epoch seconds."""
    if text is None:
        return None
    try:
        if math.isfinite(ts := float(text)):
            return ts
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        _fail(f"--from/--to: cannot read {text!r}; expected 2026-11-29T15:33:00Z or epoch seconds", 1)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _named(instances: list[str] | None) -> dict[str, str]:
    pairs = [item.partition("=") for item in instances or []]
    if any(not where for _, _, where in pairs):
        _fail("--instance: expected NAME=HOST:PORT", 1)
    return {name: where for name, _, where in pairs}


def _limits(given: list[str] | None) -> dict[str, float]:
    limits = {}
    for item in given or []:
        name, _, seconds = item.partition("=")
        try:
            limits[TargetName(name).value] = float(seconds)
        except ValueError:
            _fail(f"--slo {item}: expected TARGET=SECONDS with ttft, tpot or e2e", 1)
        if not 0 < limits[name] < math.inf:
            _fail(f"--slo {item}: expected more than 0 seconds", 1)
    return limits


def _baseline(path: Path | None) -> Any:
    from app.pipeline import attribution_for

    if path is None:
        return None
    with _open(None) as opened:
        _load(opened, [path], None)
        return attribution_for(opened)


def _open(path: Path | None, hint: str = "") -> Any:
    from app.store import Store, StoreError

    try:
        return Store(path)
    except StoreError as error:
        _fail(f"{error} {hint}".strip(), 1)


def _load(store: Any, paths: list[Path], instances: list[str] | None) -> list[Any]:
    from app.ingest import BundleError, load

    try:
        return load(store, paths, instances=_named(instances), progress=_progress if sys.stderr.isatty() else None)
    except BundleError as error:
        _fail(str(error))


def _progress(what: str) -> None:
    typer.echo(f"\r\033[Kreading {what}", nl=False, err=True)


def _told(text: str) -> None:
    _clear_progress()
    typer.echo(f"weaklink: {text}", err=True)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        typer.echo("\r\033[K", nl=False, err=True)


@app.command()
def analyze(
    paths: Paths = None,
    store: StorePath = None,
    target: Annotated[
        TargetName | None, typer.Option(help="The target to show in detail. [default: the most limited]", show_default=False)
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Start of the window: ISO 8601 (UTC) or epoch seconds.", show_default=False)
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="End of the window.", show_default=False)] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="Only this engine: a label (1) or instance/label (host:port/1).", show_default=False)
    ] = None,
    instance: Instance = None,
    what_if: Annotated[
        bool,
        typer.Option("--what-if", help="Also replay the window in the twin: joint fixes, and the load without its long prompts."),
    ] = False,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            help="TARGET=SECONDS, for example ttft=2: a missed one makes load a limit; with --what-if, who would have met it.",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="A bundle of the same service when it was well: load limits where it is exceeded.", show_default=False),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Read and judge every bundle of PATH (a folder here, or s3://bucket/folder/) as a Ray task: auto, HOST:PORT, ray://HOST:PORT, or local.",
            show_default=False,
        ),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Name the limiting link of recordings (needs no database), or of the store where no PATH is given.

    Exit status: 0 judged (also when the answer is "cannot be determined"), 2 nothing usable was found, 1 wrong arguments.
    """
    from analyzers.model import Incident
    from app import routers
    from app.pipeline import attribution_for
    from app.reports import json as json_report
    from app.reports import text as text_report

    low, high = _instant(start), _instant(end)
    if low is not None and high is not None and low >= high:
        _fail(f"--from {start} is not before --to {end}", 1)
    options = {"with_twin": what_if, "slo": _limits(slo), "baseline": _baseline(baseline)}
    if ray is not None:
        if not paths or len(paths) > 1 or store is not None:
            _fail("--ray: expected one PATH, the folder of the bundles, and no --store", 1)
        attribution, results = _on_ray(ray, paths[0], instance, start=low, end=high, engines=engine and tuple(engine), **options)
        files, router = [_file(r) for r in results], None
    else:
        with _open(None if paths and store is None else store or default_store()) as opened:
            results = _load(opened, paths, instance) if paths else []
            _clear_progress()
            attribution = attribution_for(opened, low, high, engine, **options)
            files = [_file(r) for r in results] if paths else _stored_files(opened)
            router = None if attribution.engines else routers.alone(opened)
    incident = Incident(version("weaklink"), tuple(files), attribution)
    typer.echo(
        json_report.render(incident) if output is Format.JSON else text_report.render(incident, target.value if target else None),
        nl=False,
    )
    if not attribution.engines:
        for result in results:
            reasons = "; ".join(result.reasons)
            typer.echo(
                f"weaklink: {result.bundle}/{result.name}: {result.message or reasons or 'holds nothing that could be judged'}",
                err=True,
            )
        where = ", ".join(str(p) for p in paths or [store or default_store()])
        asked = (f"from {start}" if start else "", f"to {end}" if end else "", f"of engine {', '.join(engine)}" if engine else "")
        where = " ".join(filter(None, (where, *asked)))
        if router:
            _fail(f"{where}: {router}")
        _fail(f"nothing usable in {where}: expected /metrics texts of vLLM, a vLLM server log, spans or request lines")


def _on_ray(address: str, where: Path, instances: list[str] | None, **asked: Any) -> tuple[Any, list[Any]]:
    from app.shards import Asked, ShardError, judged, on_ray, shards_of

    given = Asked(**asked, instances=_named(instances))
    try:
        # as a path s3:// has lost a slash, and file:/// two
        uri = re.sub(r"^file:/(?!/)", "file:///", re.sub(r"^(?!file:)(\w[\w+.-]+):/(?!/)", r"\1://", str(where)))
        found = shards_of(uri)
        return judged(found, given, on_ray(address, given, _progress if sys.stderr.isatty() else None))
    except ShardError as error:
        _fail(str(error))
    finally:
        _clear_progress()


def _file(result: Any) -> dict[str, Any]:
    return {
        "name": result.name,
        "format": result.format,
        "lines": result.lines,
        "rejected": result.rejected,
        "message": result.message,
        "reasons": list(result.reasons),
    }


def _stored_files(store: Any) -> list[dict[str, Any]]:
    rows = store.rows("SELECT bundle || '/' || name, format, lines, rejected FROM source_file ORDER BY file_id")
    return [{"name": r[0], "format": r[1], "lines": r[2], "rejected": r[3]} for r in rows]


class ReportFormat(StrEnum):
    """A report's format."""

    HTML = "html"
    MARKDOWN = "md"
    JSON = "json"
    PDF = "pdf"


@app.command()
def report(
    paths: Paths = None,
    store: StorePath = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Start of the window: ISO 8601 (UTC) or epoch seconds.", show_default=False)
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="End of the window.", show_default=False)] = None,
    alert: Annotated[
        int | None, typer.Option(help="The window of this alert of the store, against the time before it.", show_default=False)
    ] = None,
    kept: Annotated[
        int | None, typer.Option("--incident", help="An incident that was kept on the Reports page.", show_default=False)
    ] = None,
    engine: Annotated[list[str] | None, typer.Option(help="Only this engine: host:port/label.", show_default=False)] = None,
    title: Annotated[str, typer.Option(help="Title. [default: the verdict]", show_default=False)] = "",
    note: Annotated[str, typer.Option(help="A note in the report.", show_default=False)] = "",
    slo: Annotated[list[str] | None, typer.Option(help="TARGET=SECONDS, for example ttft=2.", show_default=False)] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="A bundle of the same service when it was well.", show_default=False)
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact/--no-redact", help="Replace hosts, addresses, ids, paths, models and keys by words.")
    ] = True,
    show_replaced: Annotated[
        bool, typer.Option("--show-replaced", help="List on standard error what was replaced by which word: for your eyes.")
    ] = False,
    with_data: Annotated[
        bool, typer.Option("--with-data", help="Also write the rows of the window as a bundle that weaklink loads again.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where to write. [default: standard output; incident.pdf]", show_default=False)
    ] = None,
    instance: Instance = None,
    output: Annotated[ReportFormat, typer.Option("--format", help="Format of the report.")] = ReportFormat.HTML,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of the json format, and nothing else.")] = False,
) -> None:
    """Write an incident report that opens offline: of recordings, of a window of the store, of an alert or of a kept incident.

    Exit status: 0 written, 2 nothing usable was found, 1 wrong arguments.
    """
    from app.incident.kept import Asked
    from app.reporting import AlertError, schema_text
    from app.reporting import report as made

    if schema:
        typer.echo(schema_text(), nl=False)
        return
    if (alert is not None or kept is not None) and (paths or start or end or engine):
        _fail("--alert and --incident say themselves which window is meant: leave out PATH, --from, --to and --engine", 1)
    low, high = _instant(start), _instant(end)
    if low is not None and high is not None and low >= high:
        _fail(f"--from {start} is not before --to {end}", 1)
    asked = Asked(low, high, tuple(engine) if engine else None, title, note, _limits(slo))
    before = _baseline_window(baseline)
    data = None if not with_data else f"{(out or Path('incident')).stem}-data.zip"
    with _open(None if paths and store is None else store or default_store()) as opened:
        results = [_file(r) for r in _load(opened, paths, instance)] if paths else []
        try:
            found = made(
                opened, _asked_of(opened, asked, alert, kept), results=results, named=[str(p) for p in paths or []], baseline=before,
                baseline_name=str(baseline) if baseline else "", redact=redact, with_data=data,
                progress=_step if sys.stderr.isatty() else None,
            )  # fmt: skip
        except AlertError as error:
            _fail(str(error), 1)
        if not paths:
            opened.note("export", f"report as {output.value}, {'redacted' if redact else 'with hosts, ids and paths'}")
    _clear_progress()
    if not found.plain["engines"]:
        _fail("nothing usable: expected /metrics texts of vLLM, a vLLM server log, spans or request lines")
    _written(found, output.value, out, show_replaced=show_replaced)


def _baseline_window(path: Path | None) -> Any:
    from app.pipeline import window_of

    if path is None:
        return None
    with _open(None) as opened:
        _load(opened, [path], None)
        return window_of(opened)


def _asked_of(store: Any, asked: Any, alert: int | None, kept: int | None) -> Any:
    """What is asked, with the window of the alert or incident; what the command line says goes before what was kept."""
    from dataclasses import replace

    from app.incident.kept import one
    from app.reporting import of_alert

    if alert is None and kept is None:
        return asked
    if alert is not None:
        found = of_alert(store, alert)
    else:
        held = one(store, cast(int, kept))
        if held is None:
            _fail(f"no incident has the number {kept}", 1)
        found = held.asked
    return replace(found, title=asked.title or found.title, note=asked.note or found.note, slo={**found.slo, **asked.slo})


def _step(what: str) -> None:
    typer.echo(f"\r\033[K{what}", nl=False, err=True)


def _written(found: Any, output: str, out: Path | None, *, show_replaced: bool) -> None:
    """Write report and data; what was replaced, and where everything is, goes to standard error."""
    from app.reporting import write

    if found.redactor is not None:
        said = ", ".join(f"{n} {kind}" for kind, n in found.plain["replaced"].items())
        typer.echo(f"replaced: {said or 'nothing'}", err=True)
        for line in found.redactor.lines() if show_replaced else ():
            typer.echo(f"  {line}", err=True)
    try:
        written = write(found.plain, output, out)
    except RuntimeError as error:
        _fail(str(error), 1)
    if found.data is not None:
        place = (out or Path()).with_name(found.plain["data"]["name"]) if out else Path(found.plain["data"]["name"])
        place.write_bytes(found.data.data)
        written.append(place)
        typer.echo(f"data: {found.plain['data']['says']}", err=True)
    if written:
        typer.echo(f"written: {', '.join(str(p) for p in written)}", err=True)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="Bundle before (folder, archive or file).")],
    after: Annotated[Path, typer.Argument(help="Bundle after.")],
    output: Output = Format.TEXT,
) -> None:
    """Tell what changed between two recordings: by stage, link and mechanism, in seconds."""
    from analyzers.compare import compare as compared
    from app.pipeline import window_of
    from app.reports import compare as report

    windows = []
    for path in (before, after):
        with _open(None) as opened:
            _load(opened, [path], None)
            windows.append(window_of(opened))
        if not windows[-1].engines:
            _fail(f"nothing usable in {path}")
    _clear_progress()
    found = compared(*windows)
    typer.echo(json.dumps(report.document(found), indent=1) if output is Format.JSON else report.render(found))


for verb in (*experiments.VERBS, *operating.VERBS):
    app.command()(verb)


@app.command()
def load(
    paths: Annotated[list[Path], typer.Argument(help="Bundles: folders, .zip, .tar.gz, or single files.")],
    store: StorePath = None,
    instance: Instance = None,
    output: Output = Format.TEXT,
) -> None:
    """Load recordings into the store. Loading the same file again adds nothing."""
    with _open(store or default_store()) as opened:
        results = _load(opened, paths, instance)
    _clear_progress()
    if output is Format.JSON:
        typer.echo(json.dumps([{"bundle": r.bundle, **_file(r), "added": r.added} for r in results], indent=1))
    else:
        for r in results:
            said = f"{r.format or '-':<16} {r.lines:>8} lines {r.rejected:>5} rejected  {r.bundle}/{r.name}"
            typer.echo(said + (f"\n{'':17}{r.message}" if r.message else "") + "".join(f"\n{'':17}{why}" for why in r.reasons))
    if not any(r.format for r in results):
        _fail("no file was recognised; `weaklink formats` lists what can be read")


@app.command()
def status(store: StorePath = None, output: Output = Format.TEXT) -> None:
    """Show what the store holds: recordings, servers, rows; its size, how fast it grows, when the disk is full."""
    from dataclasses import asdict

    from app.live.status import sources
    from app.retention import notes, summary
    from app.store import CLOSED

    path = store or default_store()
    with _open(path) as opened:
        recordings = opened.rows("SELECT bundle, instances, start_ts, end_ts FROM recording ORDER BY start_ts")
        tables = ("source_file", "series", "sample", "scrape", "request", "stat", "step", "event", "kv_event", "rejected_line")
        counts = {
            name: opened.rows(f"SELECT count(*) FROM {f'every_{name}' if name in CLOSED else name}")[0][0] for name in tables
        }
        live = sources(opened)
        held = summary(opened, time.time())
        thinned = notes(opened, -math.inf, math.inf)
        journal = opened.rows(
            "SELECT ts, kind, said FROM journal WHERE kind IN ('killed', 'full', 'room') ORDER BY ts DESC LIMIT 3"
        )
    from app.reports.words import size_lines, stamp

    if output is Format.JSON:
        found = [{"bundle": r[0], "instances": r[1], "start": stamp(r[2]), "end": stamp(r[3])} for r in recordings]
        said = [{"at": stamp(r[0]), "kind": r[1], "said": r[2]} for r in journal]
        whole = {"store": str(path), **held, "rows": counts, "recordings": found, "sources": [asdict(one) for one in live]}
        typer.echo(json.dumps({**whole, "thinned": thinned, "journal": said}, indent=1))
        return
    typer.echo("\n".join([f"{path}  {held['bytes'] / 1e6:.1f} MB", *size_lines(held), *thinned]))
    typer.echo("  ".join(f"{name} {count}" for name, count in counts.items()))
    for bundle, instances, first, last in recordings:
        typer.echo(f"{stamp(first) or 'no clock':<26}{stamp(last) or '':<26}{bundle}  {', '.join(str(i) for i in instances)}")
    for one in live:
        newest = f"last {stamp(one.last_ts)}" if one.last_ts is not None else "nothing in the last day"
        failed = f", {one.failed} failed" if one.failed else ""
        typer.echo(f"{one.kind:<11}{one.name}: {newest}, {one.good} good{failed}, {one.rejected} rejected, {len(one.gaps)} gaps")
        typer.echo("".join(f"{'':11}{line}\n" for line in one.examples), nl=False)
    for at, kind, what in journal:
        typer.echo(f"{stamp(at):<26}{kind}: {what}")
    if not recordings:
        typer.echo("Nothing is loaded yet: weaklink load PATH, or weaklink demo to see an incident.")


@app.command()
def formats(output: Output = Format.TEXT) -> None:
    """List what can be read."""
    from app.collectors.formats import FORMATS

    rows = [{"format": module.NAME, "what": (module.__doc__ or "").strip().splitlines()[0]} for module in FORMATS]
    if output is Format.JSON:
        typer.echo(json.dumps(rows, indent=1))
    else:
        for row in rows:
            typer.echo(f"{row['format']:<18}{row['what']}")


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; any but 127.0.0.1 needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8501,
    store: StorePath = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    token: Annotated[
        str | None,
        typer.Option(envvar="WEAKLINK_TOKEN", help="Secret that every page and route then asks for.", show_default=False),
    ] = None,
    target: Targets = None,
    interval: Interval = 1.0,
    config: ConfigFile = None,
    base_path: Annotated[
        str, typer.Option("--base-path", help="The path below which a proxy offers the dashboard: /weaklink.", show_default=False)
    ] = "",
    slo: Annotated[
        Path | None,
        typer.Option(help="A TOML file with objectives and notifiers. [default: that of --config]", show_default=False),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Open the dashboard on the store (one process; the store is locked while it runs).

    With --target or --config it also collects from running servers, as `weaklink collect` does, into the same store. Objectives
    (those of the file, and those made in the dashboard) are evaluated while it runs.
    """
    from app.live.collect import Collection, loops_of
    from app.retention import keeping

    found = _configured(config)
    targets = (*(one.target() for one in found.target), *_targets(target, interval))
    servers, kv = tuple(one.server() for one in found.prometheus), tuple(one.subscription() for one in found.kv_events)
    discoveries, logs = tuple(one.discovery() for one in found.discover), tuple(one.log() for one in found.log)
    going = Collection(targets, servers, kv, discoveries, logs, found.otlp.enabled)
    live = [*loops_of(going), keeping(found.retention.policy())]
    _serve(
        store or default_store(), host, port, _login(found, token), no_browser, output, background=(*live, *_alerting(slo or config)),
        going=going, base=base_path or found.login.base_path,
    )  # fmt: skip


def _login(found: Any, token: str | None) -> Any:
    from app.config import ConfigError

    try:
        return found.login.login(token)
    except ConfigError as error:
        _fail(str(error), 1)


def _alerting(path: Path | None) -> list[Any]:
    from app.alerts.loop import backgrounds
    from app.alerts.table import DefinitionError

    try:
        return backgrounds(path)
    except DefinitionError as error:
        _fail(str(error), 1)


@app.command()
def demo(
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8501,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Load the sample incidents into a temporary store and open the dashboard on one of them."""
    from importlib.resources import files

    from app.access import Login

    incidents = Path(str(files("sample_data").joinpath("incidents")))
    with tempfile.TemporaryDirectory(prefix="weaklink-demo-") as folder:
        path = Path(folder) / "demo.duckdb"
        with _open(path) as opened:
            found = sorted(p for p in incidents.iterdir() if p.is_dir() and not p.name.startswith("_"))
            found.sort(key=lambda p: p.name == SHOWN)  # last: without its address the newest is shown
            for incident in found:
                typer.echo(f"loading {incident.name}", err=True)
                _load(opened, [incident], None)
        _serve(path, "127.0.0.1", port, Login(), no_browser, output, bundle=SHOWN)


def _serve(
    path: Path, host: str, port: int, login: Any, no_browser: bool, output: Format, bundle: str | None = None,
    background: Any = (), going: Any = None, base: str = "",
) -> None:  # fmt: skip
    from app.server import ServerError
    from app.server import serve as run

    if host not in {"127.0.0.1", "localhost", "::1"} and not login.asks:
        _fail(f"--host {host}: others could read the recordings; give --token or WEAKLINK_TOKEN", 1)

    def say(text: str) -> None:
        typer.echo(json.dumps({"says": text, "store": str(path)}) if output is Format.JSON else text)

    try:
        run(
            path, host=host, port=port, login=login, base=base, going=going, open_browser=not no_browser, recording=bundle,
            background=background, say=say,
        )  # fmt: skip
    except ServerError as error:
        _fail(str(error), 1)


@app.command()
def doctor(
    source: Annotated[
        str,
        typer.Argument(help="A bundle (folder, archive or file), or a server: host:port or its URL; self: this installation."),
    ],
    instance: Instance = None,
    store: StorePath = None,
    server: Annotated[
        str | None, typer.Option(help="self: the address of the `weaklink serve` that holds the store.", show_default=False)
    ] = None,
    token: Annotated[str | None, typer.Option(envvar="WEAKLINK_TOKEN", help="self: its token.", show_default=False)] = None,
    output: Output = Format.TEXT,
) -> None:
    """Tell which signals a server gives, which are missing, off or wrong in its version, and the flags that would add them.

    Of `self` it tells whether this installation is well: store, disk, collecting.
    Exit status: 0 something was found, 2 nothing usable was (self: something is wrong), 1 wrong arguments.
    """
    if source == "self":
        _doctor_self(store or default_store(), server, token, output)
        return
    from app import routers
    from app.doctor import document, examine, render, version_of

    with _open(None) as opened:
        version_said = None
        if Path(source).exists():
            _load(opened, [Path(source)], instance)
        else:
            version_said = _look(opened, source, version_of)
        _clear_progress()
        reports = examine(opened, version_said)
        router = routers.alone(opened)
    if not reports:
        if router:
            _fail(f"{source}: {router}")
        _fail(f"nothing usable in {source}: expected /metrics of vLLM, a vLLM server log, spans or request lines")
    typer.echo(json.dumps(document(reports), indent=1) if output is Format.JSON else render(reports), nl=output is Format.JSON)


def _doctor_self(path: Path, server: str | None, token: str | None, output: Format) -> None:
    from app.selfcheck import document, examine, render

    checks = examine(path, server, token)
    found = document(checks)
    typer.echo(json.dumps(found, indent=1) if output is Format.JSON else render(checks))
    if not found["well"]:
        raise typer.Exit(NOTHING_USABLE)


def _look(store: Any, url: str, version_of: Any) -> str | None:
    """Scrape a server for a moment; the version that it says."""
    from app.live.collect import Collection
    from app.live.collect import collect as run

    (target,) = _targets([url], 0.5)
    going = Collection((target,), limit_s=1.5)
    run(store, going, lambda _: None)
    if not going.stored():
        _fail(f"{url}: no file of that name, and no server answered: {going.progress()}")
    said: str | None = version_of(target.url)
    return said


# -- live sources ---------------------------------------------------------------------------------------------------------------


@app.command()
def collect(
    target: Targets = None,
    prometheus: Annotated[
        list[str] | None,
        typer.Option(help="A Prometheus, Thanos, Mimir or VictoriaMetrics that scrapes vLLM; its URL.", show_default=False),
    ] = None,
    config: ConfigFile = None,
    seconds: Seconds = None,
    interval: Interval = 1.0,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="Prometheus: start of the window. [default: what is stored, else an hour ago]", show_default=False
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help="Prometheus: end of the window. [default: now]", show_default=False)
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(help='Prometheus: only servers with this label, such as namespace="prod".', show_default=False),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            min=1, max=86400, help="Prometheus: one value every so many seconds. [default: every sample]", show_default=False
        ),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Prometheus: the X-Scope-OrgID header.", show_default=False)] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="A vLLM log to follow. With several targets name it in --config, with its server.", show_default=False),
    ] = None,
    store: StorePath = None,
    output: Output = Format.TEXT,
) -> None:
    """Collect from running vLLM servers, or from a Prometheus that scrapes them, into the store.

    Servers are scraped until Ctrl-C or --for. A Prometheus is asked once, unless servers are scraped too or --for is given.
    Exit status: 0 something was stored, 2 nothing was, 1 wrong arguments.
    """
    from app.collectors.sources.prometheus import Server

    found = _configured(config)
    targets = [*(one.target() for one in found.target), *_targets(target, interval)]
    try:
        servers = [
            *(one.server() for one in found.prometheus),
            *(Server(url, tenant=tenant, match=tuple(match or ()), step_s=step) for url in _urls(prometheus, match)),
        ]
    except ValueError as error:
        _fail(str(error), 1)
    from app.live.collect import Collection, Log
    from app.live.collect import collect as run
    from app.retention import keeping

    logs = [*(one.log() for one in found.log), *(Log(path) for path in log or [])]
    if not (targets or servers or found.kv_events or found.discover or logs):
        _fail("name what to collect from: --target HOST:PORT, --prometheus URL, --log FILE or --config FILE", 1)
    if log and len(targets) > 1:
        _fail("--log: of which target? Name it in --config: [[log]] path = ..., instance = HOST:PORT", 1)

    window = None if start is None and end is None else (_instant(start), _instant(end))
    kv, discoveries = tuple(one.subscription() for one in found.kv_events), tuple(one.discovery() for one in found.discover)
    going = Collection(tuple(targets), tuple(servers), kv, discoveries, tuple(logs), window=window, limit_s=seconds)
    with _open(store or default_store()) as opened:
        run(opened, going, _shown(going.progress) if sys.stderr.isatty() else lambda _: None, [keeping(found.retention.policy())])
    _clear_progress()
    _say(going.summary(), output)
    if not going.stored():
        _fail("nothing was stored")


@app.command()
def ingest(
    log: Annotated[str, typer.Argument(help="A vLLM log to follow, also through rotation; - for standard input.")],
    server: Annotated[
        str | None,
        typer.Option("--server", help="host:port of the server that writes it, to join it to its metrics.", show_default=False),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="Send it to a dashboard that runs, as http://127.0.0.1:8501: it holds the store.", show_default=False),
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="WEAKLINK_TOKEN", help="The dashboard's token, where it has one.", show_default=False)
    ] = None,
    seconds: Seconds = None,
    store: StorePath = None,
    output: Output = Format.TEXT,
) -> None:
    """Store a vLLM log as it grows: a file, or standard input (kubectl logs -f POD | weaklink ingest -).

    Ends with the pipe, at Ctrl-C or --for. A file goes on where it ended the last time. A store that `weaklink serve` holds gets it
    by --to http://HOST:PORT, also from another machine.
    Exit status: 0 something was stored, 2 nothing was, 1 wrong arguments, or the dashboard refused it.
    """
    from functools import partial

    from app.live import run as until

    path = None if log == "-" else Path(log)
    if path is not None and not path.is_file():
        _fail(f"{log}: no such log file", 1)
    if to is not None and store is not None:
        _fail("--to sends to a dashboard, which has a store of its own: leave --store out", 1)
    counts: dict[str, int] = {}
    show = _shown(lambda: str(counts)) if sys.stderr.isatty() else lambda _: None
    if to is not None:
        from app.live.sent import SendError, sending

        try:
            until([sending(path, server, to.rstrip("/"), token, counts, _told)], seconds, show)
        except SendError as error:
            _clear_progress()
            _fail(str(error), 1)
    else:
        from app.live.followed import following

        with _open(store or default_store(), "Where `weaklink serve` holds it: --to http://HOST:PORT.") as opened:
            until([partial(following(path, server, counts), opened)], seconds, show)
    _clear_progress()
    _say(dict(counts), output)
    if not {"stat", "step", "event"} & counts.keys():
        _fail(f"nothing of a vLLM log in {log}")


@app.command()
def record(
    out: Annotated[Path, typer.Option(help="The bundle to write: a .zip that does not exist yet.")],
    target: Targets = None,
    log: Annotated[list[Path] | None, typer.Option(help="A log file of vLLM to follow.", show_default=False)] = None,
    otlp: Annotated[
        bool, typer.Option("--otlp", help="Take spans: vllm serve --otlp-traces-endpoint http://HOST:PORT/v1/traces.")
    ] = False,
    otlp_host: Annotated[str, typer.Option(help="Address at which spans are taken.")] = "127.0.0.1",
    otlp_port: Annotated[int, typer.Option(min=1, max=65535, help="Port at which spans are taken.")] = 4318,
    seconds: Seconds = None,
    interval: Interval = 1.0,
    max_mb: Annotated[float, typer.Option("--max-mb", min=0.001, help="End when the bundle has so many MB.")] = 1000.0,
    config: ConfigFile = None,
    output: Output = Format.TEXT,
) -> None:
    """Record running vLLM servers into a bundle, which `analyze` reads and others can be sent. Needs no store.

    Ctrl-C completes the bundle. Prompts that a log holds are cut out; names of servers stay.
    Exit status: 0 recorded, 2 no scrape succeeded, 1 wrong arguments.
    """
    from functools import partial

    from app.collectors.record import RecordError, State
    from app.collectors.record import record as run
    from app.live import run as until

    targets = [*(one.target() for one in _configured(config).target), *_targets(target, interval)]
    if not targets:
        _fail("name what to record: --target HOST:PORT", 1)
    state = State()
    where = (otlp_host, otlp_port) if otlp else None
    loop = partial(run, targets, out, state, logs=log or [], otlp_at=where, max_bytes=int(max_mb * 1e6))
    try:
        until([loop], seconds, _shown(state.progress) if sys.stderr.isatty() else lambda _: None)
    except RecordError as error:
        _fail(str(error), 1)
    _clear_progress()
    _say({"bundle": str(out), **state.summary()}, output)
    if state.failed == state.scrapes:
        _fail("no scrape succeeded")


@app.command()
def replay(
    bundle: Annotated[Path, typer.Argument(help="A bundle with scrapes, as `record` writes it.")],
    speed: Annotated[float, typer.Option(min=0.01, max=1000, help="Recorded seconds that pass in one.")] = 1.0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the first server; the others take the next ones. 0: free ones.")] = 8000,
    seconds: Seconds = None,
    output: Output = Format.TEXT,
) -> None:
    """Serve a recording as live /metrics, each of its servers on a port of its own: for trying things without a GPU."""
    from app.collectors import replay as replaying
    from app.collectors.sources.bundle import BundleError
    from app.live import run as until

    try:
        with replaying.recording(bundle) as held, replaying.serve(held, speed=speed, host=host, port=port) as playing:
            if output is Format.JSON:
                typer.echo(json.dumps({"urls": playing.urls, "seconds": (held.end - held.start) / speed}))
            else:
                for instance, url in playing.urls.items():
                    typer.echo(f"{url}  is {instance} of the recording")
                typer.echo(f"It takes {(held.end - held.start) / speed:.0f} s, then stands still; stop with Ctrl-C.")
            sys.stdout.flush()
            until([_wait], seconds, lambda _: None)
    except BundleError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{host}:{port}: {error.strerror}; give another --port", 1)


settings = typer.Typer(help="Check the configuration file.", no_args_is_help=True)
app.add_typer(settings, name="config")


@settings.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="The TOML file.")],
    output: Output = Format.TEXT,
) -> None:
    """Say what is wrong with a configuration file. Exit status: 0 nothing, 1 something."""
    from app.config import ConfigError, read

    try:
        found = read(file)
    except ConfigError as error:
        if output is Format.JSON:
            typer.echo(json.dumps({"file": str(file), "ok": False, "errors": str(error).splitlines()}, indent=1))
            raise typer.Exit(1) from error
        _fail(str(error), 1)
    said = {"target": [one.url for one in found.target], "prometheus": [one.url for one in found.prometheus]}
    said |= {"kv_events": [one.endpoint for one in found.kv_events], "log": [one.path for one in found.log]}
    said |= {"otlp": ["on" if found.otlp.enabled else "off"]}
    said |= {"slo": [one.name for one in found.definitions.slos], "notify": [one.name for one in found.definitions.notifiers]}
    notes = found.notes()
    if output is Format.JSON:
        typer.echo(json.dumps({"file": str(file), "ok": True, **said, "notes": notes}, indent=1))
    else:
        typer.echo(f"{file}: nothing wrong with it")
        typer.echo("\n".join(f"{kind:<12}{', '.join(each) or 'none'}" for kind, each in said.items()))
        typer.echo("".join(f"on this machine: {note}\n" for note in notes), nl=False)


def _configured(file: Path | None) -> Any:
    from app.config import Config, ConfigError, read

    try:
        return Config() if file is None else read(file)
    except ConfigError as error:
        _fail(str(error), 1)


def _targets(urls: list[str] | None, interval: float) -> list[Any]:
    from app.collectors.sources.scrape import Target

    found = []
    for url in urls or []:
        try:
            found.append(Target(url, interval_s=interval))
        except ValueError as error:
            _fail(f"--target {url}: {error}", 1)
    if len({one.instance for one in found}) < len(found):
        _fail("--target: each server needs a host:port of its own", 1)
    return found


def _urls(urls: list[str] | None, match: list[str] | None) -> list[str]:
    from app.collectors.promql import base_url, matcher

    for text in match or []:
        try:
            matcher(text)
        except ValueError as error:
            _fail(f"--match {text}: {error}", 1)
    try:
        return [base_url(url) for url in urls or []]
    except ValueError as error:
        _fail(f"--prometheus: {error}", 1)


def _wait(stop: Any) -> None:
    stop.wait()


def _shown(progress: Any) -> Any:
    return lambda passed: typer.echo(f"\r\033[K{passed:.0f} s  {progress()}", nl=False, err=True)


def _say(summary: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        typer.echo(json.dumps(summary, indent=1))
        return
    for name, value in summary.items():
        for each in value if isinstance(value, list) else [value]:
            text = "  ".join(f"{k} {v}" for k, v in each.items() if v is not None) if isinstance(each, dict) else each
            typer.echo(f"{name:<12}{text}")


def main() -> None:
    """Entry point of the console script."""
    usage: Any = typer.BadParameter.__base__
    usage.exit_code = 1  # click's own is 2, which here means that nothing usable was found
    cast(Any, app)()
