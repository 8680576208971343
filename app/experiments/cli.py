"""`weaklink hypotheses`, `workload`, `capacity`, `plan` and `experiment`: what to change, what it costs, and whether it was right.

Heavy modules are imported where a verb needs them.
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

WRONG: Final = 1
NOTHING: Final = 2
GIVEN: Final = ("accepted_length", "offload_bytes_per_s")


class Format(StrEnum):
    """How a verb prints."""

    TEXT = "text"
    JSON = "json"


class Generator(StrEnum):
    """What sends the load of an experiment."""

    VLLM = "vllm"
    GUIDELLM = "guidellm"
    AIPERF = "aiperf"


class Objective(StrEnum):
    """What a change should make better."""

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"
    THROUGHPUT = "throughput"
    CAPACITY = "capacity"


Paths = Annotated[list[Path], typer.Argument(help="Bundles: folders, .zip, .tar.gz, or single files.")]
Before = Annotated[Path, typer.Argument(help="Bundle before the change.")]
After = Annotated[Path, typer.Argument(help="Bundle after the change.")]
Output = Annotated[Format, typer.Option("--format", help="Output format.")]
StorePath = Annotated[
    Path | None,
    typer.Option("--store", help="The DuckDB file. [default: weaklink.duckdb in the user's data folder]", show_default=False),
]
Instance = Annotated[
    list[str] | None,
    typer.Option(
        "--instance", help="NAME=HOST:PORT: which server wrote the file NAME, where the bundle does not say.", show_default=False
    ),
]
Load = Annotated[
    Generator, typer.Option("--load", help="What sends the load: `vllm bench serve`, GuideLLM (0.7, 0.8) or AIPerf (0.13).")
]
Name = Annotated[str, typer.Option("--hypothesis", help="The change, by its name in `weaklink hypotheses`.")]
MaybeName = Annotated[
    str | None, typer.Option("--hypothesis", help="The change: its prediction is made from BEFORE alone.", show_default=False)
]
Given = Annotated[
    list[str] | None,
    typer.Option("--given", help=f"NAME=VALUE that no recording holds: {', '.join(GIVEN)}.", show_default=False),
]


def _fail(message: str, status: int = NOTHING) -> NoReturn:
    typer.echo(f"weaklink: {message}", err=True)
    raise typer.Exit(status)


def _pairs(items: list[str] | None, names: Sequence[str], option: str) -> dict[str, float]:
    """NAME=NUMBER of a repeated option."""
    found = {}
    for item in items or []:
        name, _, text = item.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if name not in names or not 0 < value < math.inf:
            _fail(f"{option} {item}: expected NAME=NUMBER above 0 with {', '.join(names)}", WRONG)
        found[name] = value
    return found


def _store(path: Path | None) -> AbstractContextManager[Any]:
    from app.store import Store, StoreError

    try:
        return Store(path)
    except StoreError as error:
        _fail(str(error), WRONG)


def _loaded(store: Any, paths: Sequence[Path], instances: list[str] | None) -> None:
    from app.ingest import BundleError, load

    named = [item.partition("=") for item in instances or []]
    if any(not where for _, _, where in named):
        _fail("--instance: expected NAME=HOST:PORT", WRONG)
    try:
        load(store, paths, instances={name: where for name, _, where in named})
    except BundleError as error:
        _fail(str(error))


def _window(paths: Sequence[Path], instances: list[str] | None = None) -> Any:
    """All that recordings hold; ends where no engine is in them."""
    with _store(None) as opened:
        _loaded(opened, paths, instances)
        return _held(opened, paths)


def _held(store: Any, paths: Sequence[Path]) -> Any:
    from app.pipeline import window_of

    window = window_of(store)
    if not window.engines:
        where = ", ".join(map(str, paths))
        _fail(f"nothing usable in {where}: expected /metrics texts of vLLM, a vLLM server log, spans or request lines")
    return window


def _known(name: str | None) -> None:
    from app.experiments.cases import NAMES

    if name is not None and name not in NAMES:
        _fail(f"--hypothesis {name}: expected one of {', '.join(NAMES)}", WRONG)


def _print(output: Format, document: Any, text: Callable[[], str]) -> None:
    typer.echo(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) if output is Format.JSON else text())


def hypotheses(
    paths: Paths,
    objective: Annotated[Objective, typer.Option(help="What should become better.")] = Objective.E2E,
    slo: Annotated[
        list[str] | None,
        typer.Option(help="TARGET=SECONDS, for example tpot=0.02: a missed one makes load a limit.", show_default=False),
    ] = None,
    given: Given = None,
    instance: Instance = None,
    output: Output = Format.TEXT,
) -> None:
    """Say what to change, best first: predicted effect, cost next door, flags of this version, and how to test it.

    Nothing is recommended where nothing limits. Exit status: 0 judged, 2 nothing usable was found, 1 wrong arguments.
    """
    from app.experiments import words
    from app.experiments.cases import case_for, hypotheses_for

    limits, inputs = _pairs(slo, words.TARGETS, "--slo"), _pairs(given, GIVEN, "--given")
    case = case_for(_window(paths, instance), slo=limits, given=inputs)
    found = hypotheses_for(case, objective.value)
    _print(output, [words.hypothesis(one, case) for one in found], lambda: words.hypotheses_text(found, case, objective.value))


def workload(
    paths: Paths,
    pool_tokens: Annotated[
        float | None, typer.Option(min=1, help="Of a trace: tokens of one engine's cache. [default: endless]", show_default=False)
    ] = None,
    instance: Instance = None,
    output: Output = Format.TEXT,
) -> None:
    """Describe the requests: lengths, sharing, arrivals, concurrency, model; objectives, and where they conflict.

    Also of a public trace (Azure, Mooncake): then with the prefix hits of several engines, routed and not. Exit status:
    0 described, 2 nothing usable was found, 1 wrong arguments.
    """
    from analyzers.hypotheses import objectives
    from app.experiments import traces, words
    from app.experiments.cases import case_for, halves

    if len(paths) == 1 and traces.sniff(paths[0]):
        _trace(paths[0], pool_tokens, output)
        return
    with _store(None) as opened:
        _loaded(opened, paths, instance)
        window, drift = _held(opened, paths), halves(opened)
    case = case_for(window)
    parts = (case.work, objectives.objectives(case), objectives.conflicts(case), drift)
    _print(output, words.workload(*parts), lambda: words.workload_text(*parts))


def _trace(path: Path, pool_tokens: float | None, output: Format) -> None:
    from analyzers.workload import workload as described
    from app.experiments import traces, words

    try:
        trace = traces.read(path)
    except traces.TraceError as error:
        _fail(str(error))
    found, routed = described(traces.window(trace)), traces.routing(trace, pool_tokens)
    _print(output, words.workload(found) | {"routing": routed}, lambda: "\n".join([found.says, *words.routing_text(routed)]))


def capacity(
    paths: Paths,
    context: Annotated[
        float | None,
        typer.Option(min=1, help="Tokens of one context. [default: p99 of prompts and of outputs]", show_default=False),
    ] = None,
    concurrency: Annotated[
        float | None, typer.Option(min=1, help="Contexts at once. [default: the most in flight]", show_default=False)
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="GPU of a server that does not run yet, for example H100.", show_default=False)
    ] = None,
    instance: Instance = None,
    output: Output = Format.TEXT,
) -> None:
    """Say whether contexts fit into the KV blocks, and what would make them fit: from a recording, or a config.json and --gpu.

    Exit status: 0 said (also when it cannot be determined), 2 nothing usable was found, 1 wrong arguments.
    """
    from analyzers.capacity import sheet
    from app.experiments import words
    from app.experiments.cases import engine_to_plan, wanted

    with _store(None) as opened:
        _loaded(opened, paths, instance)
        engine, usual = engine_to_plan(opened, gpu), wanted(opened)
    if engine is None:
        _fail(f"nothing usable in {', '.join(map(str, paths))}: expected a recording of vLLM, or a model's config.json")
    tokens, count = context or usual[0], concurrency or usual[1]
    if tokens is None or count is None:
        _fail("no requests in it: give --context and --concurrency", WRONG)
    found = sheet(engine, tokens, count)
    _print(output, words.capacity(found), lambda: words.capacity_text(found))


def plan(
    paths: Paths,
    hypothesis: Name,
    given: Given = None,
    instance: Instance = None,
    load: Load = Generator.VLLM,
    output: Output = Format.TEXT,
) -> None:
    """Print the test of a change as a shell script: servers before and after, the load, recordings, the judgement."""
    from app.experiments import words
    from app.experiments.cases import case_for, proposal
    from app.experiments.plan import script

    _known(hypothesis)
    case = case_for(_window(paths, instance), given=_pairs(given, GIVEN, "--given"))
    found = proposal(case, hypothesis)
    if found is None:
        _fail(f"{hypothesis} does not apply to {', '.join(map(str, paths))}")
    text = script(case, found, load.value)
    _print(output, {"hypothesis": words.hypothesis(found, case), "script": text}, lambda: text.rstrip("\n"))


VERBS: Final = (hypotheses, workload, capacity, plan)

# -- experiments ----------------------------------------------------------------------------------------------------------------
experiment = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Experiments: a change kept with its prediction, and judged by a recording after it.",
)


@experiment.command("judge")
def judge(before: Before, after: After, hypothesis: MaybeName = None, given: Given = None, output: Output = Format.TEXT) -> None:
    """Say whether a change did what was predicted: confirmed, partly, refuted or inconclusive, with effect and range.

    With --hypothesis any other difference of the configuration makes it inconclusive.
    """
    from app.experiments import words
    from app.experiments.cases import judged, predicted

    _known(hypothesis)
    inputs = _pairs(given, GIVEN, "--given")
    windows = _window([before]), _window([after])
    promise = predicted(windows[0], hypothesis, inputs) if hypothesis else None
    document = words.judgement(judged(*windows, hypothesis, promise))
    _print(output, document, lambda: words.judgement_text(document))


@experiment.command("start")
def start(
    ctx: typer.Context,
    before: Before,
    hypothesis: Name,
    given: Given = None,
    store: StorePath = None,
    output: Output = Format.TEXT,
) -> None:
    """Keep a change with its prediction, made from the recording before it."""
    from app.experiments import table, words
    from app.experiments.cases import case_for, proposal

    _known(hypothesis)
    case = case_for(_window([before]), given=_pairs(given, GIVEN, "--given"))
    found = proposal(case, hypothesis)
    if found is None:
        _fail(f"{hypothesis} does not apply to {before}")
    prediction = words.hypothesis(found, case)
    with _store(store or ctx.obj()) as opened:
        number = table.start(opened, prediction, before.name, before)
    effects = ", ".join(words.effect(name, found.effect[name]) for name in words.TARGETS)
    said = f"experiment {number}: {found.change}\npredicted: {effects}\nnow change it, record the same load, and: weaklink experiment attach {number} AFTER"
    _print(output, {"experiment": number, "prediction": prediction}, lambda: said)


@experiment.command("attach")
def attach(
    ctx: typer.Context,
    number: Annotated[int, typer.Argument(help="The experiment's number.")],
    after: After,
    before: Annotated[
        Path | None, typer.Option(help="The bundle before, where it no longer lies where it did.", show_default=False)
    ] = None,
    store: StorePath = None,
    output: Output = Format.TEXT,
) -> None:
    """Judge a kept experiment by the recording after the change, against the prediction that was made before it."""
    from app.experiments import table, words
    from app.experiments.cases import judged

    with _store(store or ctx.obj()) as opened:
        row = table.one(opened, number)
        if row is None:
            _fail(f"there is no experiment {number}", WRONG)
        path = before or row.before_path
        if path is None or not path.exists():
            _fail(f"{path or row.before}: the recording before is not there any more; give --before PATH", WRONG)
        found = judged(_window([path]), _window([after]), row.hypothesis, table.kept(row.prediction))
        document = words.judgement(found)
        table.finish(opened, number, after.name, document)
    _print(output, document, lambda: words.judgement_text(document))


@experiment.command("list")
def history(ctx: typer.Context, store: StorePath = None, output: Output = Format.TEXT) -> None:
    """List experiments, the newest first."""
    from app.experiments import table, words

    with _store(store or ctx.obj()) as opened:
        rows = table.rows(opened)
    _print(output, [words.experiment(row) for row in rows], lambda: words.experiments_text(rows))
