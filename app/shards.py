"""Many bundles judged where there are processors for them: Ray tasks, each with a store of its own, combined to one verdict.

A shard is a bundle: an archive or folder of the folder that was named, or its plain files together. A task fetches it, reads it
into a DuckDB file of its own, judges its engines alone, and gives back what combining needs (`Partial`), which is small: the
driver's memory does not grow with the data. Bundles that hold the same server, and those with KV events (a prefix that another
server holds counts), are read together by a second task. The result is that of `analyze` with the bundles named one by one.
"""

import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pyarrow import ArrowException, fs

from analyzers.attribute import fleet, results_of
from analyzers.combine import lean
from analyzers.model import Attribution, Engine, EngineResult, Window
from app.collectors.sources.bundle import is_archive
from app.ingest import FileResult, load
from app.pipeline import attribution_notes, window_of
from app.store import Store

MEMORY_LIMIT: Final = "1GB"  # of the database of one task; what does not fit goes to its disk
AHEAD: Final = 2  # tasks that are handed out, for each processor: all at once would fill the driver's memory
REACHED_S: Final = 5.0  # in which a cluster answers
STARTS: Final = 3  # attempts to start one here: Ray gives it 30 s
_KV: Final = "KV events"  # stands among the servers of a bundle that holds some
_SERVERS: Final = (
    "SELECT instance FROM source_file UNION SELECT instance FROM series UNION SELECT instance FROM scrape UNION SELECT instance FROM request"
)


class ShardError(Exception):
    """A folder cannot be listed, Ray cannot be reached, or a shard cannot be judged; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A bundle: paths of the file system that `where` (a URI, or a local folder) names."""

    where: str
    paths: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its names, for messages."""
        return ", ".join(path.rstrip("/").rpartition("/")[2] for path in self.paths)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of every shard; as `analyze` has it."""

    start: float | None = None
    end: float | None = None
    engines: tuple[str, ...] | None = None
    with_twin: bool = False
    slo: Mapping[str, float] | None = None
    baseline: Attribution | None = None
    instances: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Partial:
    """One task's part: its engines judged alone, without their rows. `servers`: all that the shard holds something of."""

    window: Window
    results: tuple[EngineResult, ...]
    timed: bool  # its span is that of scrapes with a clock
    named: bool  # its engines were observed; False: only records of clients or benchmarks speak of them
    servers: frozenset[str]
    notes: tuple[str, ...]
    files: tuple[FileResult, ...]


Run = Callable[[Sequence[tuple[Shard, ...]]], Iterator[tuple[int, Partial]]]  # judges groups of shards, in any order


# -- one task -----------------------------------------------------------------------------------------------------------------
def judge(shards: Sequence[Shard], asked: Asked) -> Partial:
    """Read shards into a store of their own and judge the engines in it, each alone."""
    with tempfile.TemporaryDirectory(prefix="weaklink-shard-") as folder:
        paths = [path for at, shard in enumerate(shards) for path in _fetched(shard, Path(folder) / str(at))]
        with Store(Path(folder) / "shard.duckdb", memory_limit=MEMORY_LIMIT, threads=1) as store:
            files = load(store, paths, instances=asked.instances)
            window = window_of(store, asked.start, asked.end, asked.engines)
            servers = {row[0] or "" for row in store.rows(_SERVERS)}
            if store.rows("SELECT 1 FROM every_kv_event LIMIT 1"):
                servers.add(_KV)
            notes = attribution_notes(store, window, asked.start, asked.end)
    results = results_of(window, with_twin=asked.with_twin, slo=asked.slo, baseline=asked.baseline)
    timed = any(e.interval["timed"].astype(bool).any() for e in window.engines if len(e.interval.get("ts", ())))
    named = any(len(table.get("ts", ())) for e in window.engines for table in (e.interval, e.stat, e.step, e.scrape))
    engines = tuple(lean(engine) for engine in window.engines)
    return Partial(replace(window, engines=engines), results, timed, named, frozenset(servers), tuple(notes), tuple(files))


def _fetched(shard: Shard, folder: Path) -> list[Path]:
    """The shard's files on this machine: where they are, or copied from where they are."""
    system, _ = _system(shard.where)
    if isinstance(system, fs.LocalFileSystem):
        return [Path(path) for path in shard.paths]
    parent = shard.paths[0].rstrip("/").rpartition("/")[0]
    for info in system.get_file_info([*shard.paths]):
        inside = info.type == fs.FileType.Directory
        for one in system.get_file_info(fs.FileSelector(info.path, recursive=True)) if inside else (info,):
            if one.type != fs.FileType.File:
                continue
            parts = one.path.removeprefix(parent).strip("/").split("/")
            if ".." in parts or any("\\" in part for part in parts):  # a bucket's keys are any text
                raise ShardError(f"{one.path}: a name that leads out of its folder")
            (folder.joinpath(*parts)).parent.mkdir(parents=True, exist_ok=True)
            fs.copy_files(one.path, str(folder.joinpath(*parts)), source_filesystem=system)
    return [folder / path.rstrip("/").rpartition("/")[2] for path in shard.paths]


def _system(where: str) -> tuple[Any, str]:
    if "://" in where:
        found: tuple[Any, str] = fs.FileSystem.from_uri(where)
        return found
    return fs.LocalFileSystem(), str(Path(where).absolute())


# -- the driver ---------------------------------------------------------------------------------------------------------------
def shards_of(where: str) -> list[Shard]:
    """The bundles in a folder, here or behind a URI (s3://bucket/folder/). ShardError: it cannot be listed, or is empty."""
    try:
        system, path = _system(where)
        entries = system.get_file_info(fs.FileSelector(path, recursive=False))
    except (OSError, ArrowException) as error:
        raise ShardError(f"{where}: cannot be listed ({str(error).splitlines()[0]}); expected a folder of bundles") from error
    shown = sorted((one for one in entries if not one.base_name.startswith(".")), key=lambda one: one.path)
    bundles = [one.path for one in shown if one.type == fs.FileType.Directory or is_archive(Path(one.path))]
    plain = [one.path for one in shown if one.path not in set(bundles)]
    found = [Shard(where, (path,)) for path in bundles] + ([Shard(where, tuple(plain))] if plain else [])
    if not found:
        raise ShardError(f"{where}: is empty; expected a folder of bundles")
    return found


def judged(shards: Sequence[Shard], asked: Asked, run: Run) -> tuple[Attribution, list[FileResult]]:
    """All shards judged by `run` and combined; with what became of each file."""
    partials = dict(run([(shard,) for shard in shards]))
    together = [group for group in _groups([partials[at].servers for at in range(len(shards))]) if len(group) > 1]
    if together:
        again = dict(run([tuple(shards[at] for at in group) for group in together]))
        for number, group in enumerate(together):
            for at in group[1:]:
                del partials[at]
            partials[group[0]] = again[number]
    found = [partials[at] for at in sorted(partials)]
    return combined(found, asked), [file for one in found for file in one.files]


def combined(partials: Sequence[Partial], asked: Asked) -> Attribution:
    """The verdict over all partials, which share no server."""
    named = [one for one in partials if one.named] or partials
    pairs = [(engine, result) for one in named for engine, result in zip(one.window.engines, one.results, strict=True)]
    pairs.sort(key=lambda pair: _order(pair[0]))
    timed = [one for one in partials if one.timed] or partials
    starts = [one.window.start for one in timed if one.window.start is not None]
    ends = [one.window.end for one in timed if one.window.end is not None]
    window = Window(
        min(starts, default=asked.start), max(ends, default=asked.end), tuple(engine for engine, _ in pairs),
        sum(one.window.restarts for one in partials),
    )  # fmt: skip
    found = fleet(window, [result for _, result in pairs], slo=asked.slo, baseline=asked.baseline)
    notes = dict.fromkeys((*found.notes, *(note for one in partials for note in one.notes)))
    return replace(found, notes=tuple(notes))


def _order(engine: Engine) -> tuple[str, str]:
    return engine.instance or "None", engine.engine.zfill(6)  # as app.pipeline orders them


def _groups(servers: Sequence[frozenset[str]]) -> list[list[int]]:
    """Which shards are to be read together: those that share a server, directly or over others."""
    groups: list[tuple[set[str], list[int]]] = []
    for at, names in enumerate(servers):
        near = [group for group in groups if group[0] & names]
        groups = [group for group in groups if not group[0] & names]
        groups.append((set(names).union(*(group[0] for group in near)), sorted([at, *(one for _, own in near for one in own)])))
    return [members for _, members in groups]


# -- Ray ----------------------------------------------------------------------------------------------------------------------
def on_ray(address: str, asked: Asked, progress: Callable[[str], None] | None = None, processors: int | None = None) -> Run:
    """A `Run` on a Ray cluster ("auto", HOST:PORT, ray://HOST:PORT), or on one that is started here ("local").

    ShardError where Ray is not installed or not reached, or a shard cannot be judged: a verdict without it would be another.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing leaves by itself
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # else the folder that `uv run` stands in is sent to the workers
    try:
        import ray  # noqa: PLC0415 an extra
    except ImportError as error:
        raise ShardError('--ray needs the extra: pip install "weaklink[ray]"') from error
    if not ray.is_initialized():
        _connect(ray, address, processors)
    task, given = ray.remote(num_cpus=1)(judge), ray.put(asked)
    most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))

    def run(groups: Sequence[tuple[Shard, ...]]) -> Iterator[tuple[int, Partial]]:
        waiting, going, done = iter(enumerate(groups)), {}, 0
        for at, group in _first(waiting, most):
            going[task.remote(group, given)] = at
        while going:
            (ready,), _ = ray.wait(list(going), num_returns=1)
            at = going.pop(ready)
            try:
                partial = ray.get(ready)
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None) or error
                why = f"{type(cause).__name__}: {next(iter(str(cause).splitlines()), '')}"
                raise ShardError(f"{', '.join(one.name for one in groups[at])}: could not be judged ({why})") from error
            for number, group in _first(waiting, 1):
                going[task.remote(group, given)] = number
            done += 1
            if progress:
                progress(f"{done} of {len(groups)} bundles")
            yield at, partial

    return run


def _connect(ray: Any, address: str, processors: int | None) -> None:
    """Reach the cluster, or start one here."""
    here = {"num_cpus": processors, "include_dashboard": False} if address == "local" else {"address": address}
    for left in reversed(range(STARTS if address == "local" else 1)):
        try:
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if port.isdigit():  # Ray itself tries for minutes
                socket.create_connection((host, int(port)), REACHED_S).close()
            ray.init(**here, logging_level=logging.ERROR, log_to_driver=False)
        except Exception as error:  # a bare one where a node does not start, which a busy machine does not in time
            if not left:
                raise ShardError(f"no Ray at {address} ({str(error).splitlines()[0]}); expected auto, local, HOST:PORT or ray://HOST:PORT") from error  # fmt: skip
        else:
            return


def _first(waiting: Iterator[tuple[int, tuple[Shard, ...]]], most: int) -> Iterable[tuple[int, tuple[Shard, ...]]]:
    return [one for _, one in zip(range(most), waiting, strict=False)]
