"""Sources to formats to store: what `load`, `analyze PATH` and an upload do."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from analyzers.model import Batch
from app import untimed
from app.align import align
from app.collectors import strangers
from app.collectors.formats import FORMATS, aiperf_server
from app.collectors.sources.bundle import BundleError, Member, holds_files, is_archive, members
from app.store import Store, concat

HALF_YEAR_S: Final = 182 * 86400.0
BESIDE_S: Final = 2.0  # two logs that overlap by less follow each other: stamps have whole seconds
ROWS_AT_ONCE: Final = 120_000  # a row group of DuckDB; some 15 MB of steps
LOCAL: Final = ("0.0.0.0", "127.", "localhost", "[::]", "[::1]")  # noqa: S104 (addresses that name no machine)
CLIENTS: Final = ("request_lines", "bench_result", "bench_text", "guidellm", "aiperf")  # who sent the requests
APART: Final = 0.75  # of the interval: a second recorder's scrape nearer than this says nothing new
NEAR: Final = "scrapes lie close beside those of another recording of the same server: not used"
_OVERLAPS: Final = (
    "SELECT DISTINCT own.instance FROM (SELECT instance, min(ts) AS low, max(ts) AS high FROM scrape WHERE file_id = $file AND ok AND timed "
    "GROUP BY instance) AS own JOIN scrape AS other USING (instance) WHERE other.file_id <> $file AND other.ok AND other.timed "
    "AND other.ts BETWEEN own.low - 1 AND own.high + 1"
)
_OWN: Final = "SELECT ts FROM scrape WHERE file_id = $file AND instance = $instance AND ok AND timed ORDER BY ts"
_OTHERS: Final = "SELECT DISTINCT ts FROM scrape WHERE file_id <> $file AND instance = $instance AND ok AND timed ORDER BY ts"
FOREIGN: Final = "no series of vLLM in it (their names begin with vllm:): these are another program's metrics"
NESTED: Final = "not recognised: an archive inside of a bundle is not opened; unpack it, or name it alone"


@dataclass(frozen=True)
class FileResult:
    """What became of one file: format None where it was not recognised, `added` False where nothing went in."""

    bundle: str
    name: str
    format: str | None
    lines: int = 0
    rejected: int = 0
    added: bool = False
    message: str = ""
    reasons: tuple[str, ...] = ()


Progress = Callable[[str], None]


def load(
    store: Store,
    paths: Iterable[Path],
    *,
    instances: Mapping[str, str] | None = None,
    now: float | None = None,
    progress: Progress | None = None,
) -> list[FileResult]:
    """Load bundles; one result a file. `instances` names the server of a file that does not say it (name: host:port).

    A file that fails leaves nothing behind and does not stop the others; an archive that cannot be opened is a result with
    its message. Raises BundleError where a path does not exist.
    """
    moment = time.time() if now is None else now
    results: list[FileResult] = []
    for name, group in _bundles(list(paths)):
        with ExitStack() as stack:
            try:
                found = [member for path in group for member in stack.enter_context(members(path))]
            except BundleError as error:
                if not all(path.is_file() or path.is_dir() for path in group):
                    raise
                results.append(FileResult(name, name, None, message=str(error).removeprefix(f"{name}: ")))
                continue
            results += _Bundle(store, name, found, instances or {}, moment, progress).load()
    return results


def _bundles(paths: Sequence[Path]) -> list[tuple[str, list[Path]]]:
    """Each folder or archive is a bundle; plain files named together are one, called after their folder."""
    plain = [path for path in paths if path.is_file() and not is_archive(path)]
    groups = [(path.name or path.resolve().name, [path]) for path in paths if path not in plain]
    if len(plain) == 1:
        groups.append((plain[0].name, plain))
    elif plain:
        groups.append((plain[0].resolve().parent.name, plain))
    return groups


class _SuperfluousError(Exception):
    """A file that adds nothing to what is there; the message says why."""


class _Rows:
    """Gathers the batches of one file: DuckDB takes a hundred thousand rows at once far faster than five thousand.

    It takes them on a thread of its own while the next ones are read. All of it belongs to the transaction of the thread that
    reads, whose cursor no two threads may use at once: that thread calls `settle` before it uses the store itself.
    """

    def __init__(self, store: Store, file_id: int) -> None:
        self.store, self.file_id = store, file_id
        self.held: dict[tuple[str, ...], list[Any]] = {}  # table and its columns -> Arrow tables
        self.count = 0
        self.worker: ThreadPoolExecutor | None = None  # a small file needs none
        self.going: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.worker is not None:
            self.worker.shutdown()

    def add(self, batch: Batch) -> None:
        rows = self.store.table(batch)
        self.held.setdefault((batch.table, *rows.column_names), []).append(rows)
        self.count += rows.num_rows
        if self.count >= ROWS_AT_ONCE:
            self.settle()
            if self.worker is None:
                self.worker = ThreadPoolExecutor(1, "weaklink-rows")
            self.going = self.worker.submit(self._insert, self.held, self.store.cursor())
            self.held, self.count = {}, 0

    def settle(self) -> None:
        """Wait until the store has taken what was handed to it; raises what it raised."""
        if self.going is not None:
            going, self.going = self.going, None
            going.result()

    def flush(self) -> None:
        """Insert what is left."""
        self.settle()
        self._insert(self.held, self.store.cursor())
        self.held, self.count = {}, 0

    def _insert(self, held: dict[tuple[str, ...], list[Any]], cursor: Any) -> None:
        for (name, *_), tables in held.items():
            self.store.insert(name, concat(tables), cursor=cursor, file_id=self.file_id)


def _format_of(head: bytes) -> Any | None:
    if holds_files(head):
        return None
    claims = [module for module in FORMATS if module.sniff(head)]
    return claims[0] if len(claims) == 1 else None


class _Bundle:
    """The files of one bundle on their way into the store: they explain each other's server and year."""

    def __init__(
        self,
        store: Store,
        bundle: str,
        found: Sequence[Member],
        instances: Mapping[str, str],
        now: float,
        progress: Progress | None,
    ) -> None:
        self.store, self.bundle, self.found, self.now = store, bundle, found, now
        self.asked = instances
        self.progress = progress or (lambda _: None)
        # nothing with a full time read yet: a stamp without a year is of the last twelve months
        self.reference_ts = now - HALF_YEAR_S
        self.files: list[tuple[int, Member, str]] = []  # file id, member, format
        self.old: set[int] = set()  # of these, what was in the store before
        self.own: dict[int, str | None] = {}  # the server that a file names by itself, or that was asked for
        self.untimed = 0  # scrapes without a time before the file that is read
        self.unsure: set[int] = set()  # files whose address several servers have
        self.groups: list[list[str]] = []  # texts without a time, those of one process together
        self.apart: dict[str, str] = {}  # and the servers that they are of, where those are several processes

    def load(self) -> list[FileResult]:
        results: list[FileResult] = []
        ranked: list[tuple[int, int, Member, Any]] = []
        for position, member in enumerate(self.found):
            if member.path is None:
                results.append(FileResult(self.bundle, member.name, None, message=member.problem or "cannot be read"))
                continue
            head = member.head()
            module = _format_of(head)
            if module is None:
                why = "empty" if not head else NESTED if holds_files(head) else strangers.said_of(head)
                results.append(FileResult(self.bundle, member.name, None, message=member.problem or why))
                continue
            ranked.append((self._rank(module.NAME, head), position, member, module))
        # timed sources first: they give the year of log stamps; texts without a time last: they may be superfluous
        ages = self._texts(ranked) if sum(item[0] == 2 for item in ranked) > 1 else {}
        for rank, _, member, module in sorted(ranked, key=lambda item: (item[0], ages.get(item[2].name, ()), item[1])):
            self.progress(f"{self.bundle}/{member.name}")
            results.append(self._one(member, module, timeless=rank == 2, sums=rank == 3))
            if rank == 0:
                self._settle_reference()
        self._keep_apart()
        self._settle_instances()
        self._align()
        questions = self._questions()
        order = {member.name: position for position, member in enumerate(self.found)}
        results = [replace(r, message="; ".join(filter(None, (r.message, questions.get(r.name))))) for r in results]
        return sorted(results, key=lambda r: order.get(r.name, 0))

    @staticmethod
    def _rank(name: str, head: bytes) -> int:
        if name == "prometheus_text":
            return 0 if head.lstrip().startswith(b"{") else 2
        if name == aiperf_server.NAME and not aiperf_server.scrapes(head):
            return 3  # sums of a run, of which the scrapes may be there as well
        return 1 if name in {"vllm_log", "vllm_command"} else 0

    def _texts(self, ranked: Sequence[tuple[int, int, Member, Any]]) -> dict[str, tuple[float, float]]:
        """How old the process and the counters of each text without a time are, and which texts are of one process."""
        texts: dict[str, untimed.Text] = {}
        for rank, _, member, module in ranked:
            if rank == 2:
                with member.open() as stream:
                    texts[member.name] = untimed.seen(module.read(stream, self.reference_ts))
        free = {name: text for name, text in texts.items() if name not in self.asked}
        self.groups = untimed.processes(free)
        self.apart = untimed.places(self.groups)
        return {name: text.age() for name, text in texts.items()}

    # -- one file -----------------------------------------------------------------------------------------------------
    def _one(self, member: Member, module: Any, *, timeless: bool, sums: bool) -> FileResult:
        store, name = self.store, module.NAME
        result = FileResult(self.bundle, member.name, name)
        known = store.rows(
            "SELECT file_id, bundle, name, lines, rejected, instance FROM source_file WHERE sha256 = ? AND format = ?",
            [member.hash_hex, name],
        )
        if known:
            file_id, bundle, other, lines, rejected, own = known[0]
            self.files.append((file_id, member, name))
            self.old.add(file_id)
            self.own[file_id] = self.asked.get(member.name) or (own if own != bundle else None)
            return replace(result, lines=lines, rejected=rejected, message=f"already loaded (as {bundle}/{other}): nothing added")
        default = self.asked.get(member.name) or self._default_instance() if timeless else None
        if timeless and default is None:
            return replace(
                result,
                message=f"has no time and the bundle holds several servers: not used; if it is needed, --instance {member.name}=HOST:PORT",
            )
        if timeless and store.rows("SELECT 1 FROM scrape WHERE instance = ? AND timed AND ok LIMIT 1", [default]):
            return replace(result, message="has no time; timed scrapes of the same server are there: not used")
        if timeless and member.name not in self.asked:
            default = self.apart.get(member.name, default)
        if timeless:
            self.untimed = int(
                store.rows("SELECT coalesce(max(ts) + 1, 0) FROM scrape WHERE instance = ? AND NOT timed", [default])[0][0]
            )
        try:
            with store.transaction():
                file_id = store.rows("SELECT nextval('file_id_seq')")[0][0]
                store.add(
                    Batch(
                        "source_file",
                        {
                            "file_id": [file_id],
                            "bundle": [self.bundle],
                            "name": [member.name],
                            "format": [name],
                            "sha256": [member.hash_hex],
                            "bytes": [member.size],
                            "loaded_at": [self.now],
                        },
                    )
                )
                facts, problem = self._read(member, module, file_id, default or self.bundle)
                if sums:
                    self._refuse_known(file_id)
                near = self._drop_near(file_id) if not timeless else 0
                store.execute(
                    "UPDATE source_file SET lines = ?, rejected = ?, instance = ?, pid = ?, clock_offset_s = ? WHERE file_id = ?",
                    [
                        facts.get("lines", 0),
                        facts.get("rejected", 0),
                        facts.get("instance"),
                        facts.get("pid"),
                        facts.get("clock_offset_s"),
                        file_id,
                    ],
                )
        except _SuperfluousError as error:
            return replace(result, message=str(error))
        except Exception as error:  # noqa: BLE001 one broken file must not lose the others; nothing of it was stored
            return replace(result, message=f"could not be loaded, nothing of it was stored: {type(error).__name__}: {error}")
        self.files.append((file_id, member, name))
        self.own[file_id] = self.asked.get(member.name) or facts.get("instance")
        reasons = tuple(
            f"line {line}: {why}"
            for line, why in store.rows(
                "SELECT line, reason FROM rejected_line WHERE file_id = ? ORDER BY line LIMIT 5", [file_id]
            )
        )
        return replace(
            result,
            lines=facts.get("lines", 0),
            rejected=facts.get("rejected", 0),
            added=True,
            message=problem or member.problem or (f"{near} {NEAR}" if near else FOREIGN if timeless and facts.get("none") else ""),
            reasons=reasons,
        )

    def _refuse_known(self, file_id: int) -> None:
        """Raise where the sums of a file are those of scrapes that are there: taken together, counters would seem to fall."""
        rows = self.store.rows(
            "SELECT 1 FROM scrape AS other JOIN (SELECT instance, min(ts) AS low, max(ts) AS high FROM scrape WHERE file_id = $file "
            "GROUP BY instance) AS own USING (instance) WHERE other.file_id <> $file AND other.ok AND other.timed "
            "AND other.ts BETWEEN own.low AND own.high LIMIT 1",
            {"file": file_id},
        )
        if rows:
            raise _SuperfluousError("holds sums; scrapes of the same server at the same time are there: not used")

    def _drop_near(self, file_id: int) -> int:
        """Take out the scrapes of a file that lie close beside those of another recorder of the same server; how many.

        Each stamps a scrape when its own answer is complete: taken together, a counter could seem to fall, which reads as a restart.
        """
        dropped = 0
        bound = {"file": file_id}
        for (instance,) in self.store.rows(_OVERLAPS, bound):
            own, other = (
                np.array([row[0] for row in self.store.rows(statement, {**bound, "instance": instance})])
                for statement in (_OWN, _OTHERS)
            )
            margin = APART * float(np.median(np.diff(own))) if len(own) > 2 else 1.0
            after = np.clip(np.searchsorted(other, own), 0, len(other) - 1)
            away = np.minimum(np.abs(other[after] - own), np.abs(own - other[np.maximum(after - 1, 0)]))
            near = own[(away > 0) & (away < margin)].tolist()
            self.store.execute(
                "DELETE FROM scrape WHERE file_id = ? AND instance = ? AND list_contains(?, ts)", [file_id, instance, near]
            )
            self.store.execute(
                "DELETE FROM sample WHERE list_contains(?, ts) AND series_id IN (SELECT series_id FROM series WHERE instance = ?)",
                [near, instance],
            )
            dropped += len(near)
        return dropped

    def _read(self, member: Member, module: Any, file_id: int, instance: str) -> tuple[dict[str, Any], str | None]:
        """Read one file into the store: the last source_file row, and what was wrong with the bytes."""
        facts: dict[str, Any] = {}
        numbers = np.zeros(0, dtype=np.int64)  # series number of the file -> series_id
        with member.open() as stream, _Rows(self.store, file_id) as rows:
            for batch in module.read(stream, self.reference_ts):
                if batch.table == "source_file":
                    facts = {name: values[0] for name, values in batch.columns.items()}
                elif batch.table == "series":
                    named = dict(batch.columns)
                    named["instance"] = [one or instance for one in named["instance"]]
                    local = np.asarray(named["series"], dtype=np.int64)
                    grown = np.zeros(max(len(numbers), int(local.max()) + 1), dtype=np.int64)
                    grown[: len(numbers)] = numbers
                    rows.settle()
                    grown[local] = self.store.series_ids(named)
                    numbers = grown
                elif batch.table == "sample":
                    ids = numbers[np.asarray(batch.columns["series"], dtype=np.int64)]
                    columns = {"series_id": ids, "ts": self._shifted(batch.columns["ts"]), "value": batch.columns["value"]}
                    rows.add(Batch("sample", columns))
                elif batch.table == "scrape":
                    columns = dict(batch.columns)
                    columns["instance"] = [one or instance for one in columns["instance"]]
                    if not all(columns["timed"]):
                        columns["ts"] = self._shifted(columns["ts"])
                    rows.add(Batch("scrape", columns))
                else:
                    rows.add(batch)
            rows.flush()
            return {**facts, "none": not len(numbers)}, stream.problem

    def _shifted(self, ts: Any) -> Any:
        """Texts without a time get their position among the server's texts instead of 0, 1, ..."""
        return np.asarray(ts, dtype=float) + self.untimed if self.untimed and len(ts) and max(ts) < 1e6 else ts

    # -- what the files say about each other --------------------------------------------------------------------------
    def _settle_reference(self) -> None:
        """Take the year of log stamps from what carries a full time."""
        ids = [file_id for file_id, _, _ in self.files]
        if ids:
            found = self.store.rows(
                "SELECT min(ts) FROM (SELECT ts FROM scrape WHERE timed AND ok AND list_contains(?, file_id) "
                "UNION ALL SELECT arrival_ts FROM request WHERE list_contains(?, file_id))",
                [ids, ids],
            )
            self.reference_ts = found[0][0] or self.reference_ts

    def _instances(self) -> list[str]:
        """Servers this bundle names by itself: scrape URLs, then start lines of logs."""
        scraped = self._scraped()
        logged = sorted({own for file_id, _, name in self.files if name == "vllm_log" and (own := self.own[file_id])})
        return scraped + [one for one in logged if one not in scraped and not _same_port(one, scraped)]

    def _scraped(self) -> list[str]:
        ids = [file_id for file_id, _, _ in self.files]
        statement = (
            "SELECT DISTINCT instance FROM scrape WHERE timed AND list_contains(?, file_id) AND instance IS NOT NULL "
            "AND instance NOT IN (SELECT instance FROM router_series WHERE instance IS NOT NULL) ORDER BY 1"  # those write no log here
        )
        return [r[0] for r in self.store.rows(statement, [ids])]

    def _default_instance(self) -> str | None:
        """The only server of the bundle; its own name where no file names one; None where there are several."""
        named = self._instances()
        return named[0] if len(named) == 1 else self.bundle if not named else None

    def _keep_apart(self) -> None:
        """Logs that say one bind-all or local address and go on at the same time are of several servers: of pods, mostly."""
        fresh = {
            file_id: member.name
            for file_id, member, name in self.files
            if name == "vllm_log" and file_id not in self.old and member.name not in self.asked
        }
        rows = self.store.rows(
            "SELECT file_id, min(ts), max(ts) FROM (SELECT file_id, ts FROM stat UNION ALL SELECT file_id, ts FROM step "
            "UNION ALL SELECT file_id, ts FROM event) WHERE ts IS NOT NULL AND list_contains(?, file_id) GROUP BY file_id",
            [list(fresh)],
        )
        times = {file_id: (start, end) for file_id, start, end in rows if (self.own[file_id] or "").startswith(LOCAL)}
        owns, scraped = {file_id: self.own[file_id] or "" for file_id in times}, self._scraped()
        for file_id, own in owns.items():
            start, end = times[file_id]
            beside = [times[other] for other in times if other != file_id and owns[other] == own]
            if any(first < end - BESIDE_S and start < last - BESIDE_S for first, last in beside):
                possible = _same_port(own, scraped)
                self.own[file_id] = None if possible else f"{own} {fresh[file_id]}"
                self.unsure |= {file_id} if possible else set()

    def _settle_instances(self) -> None:
        """Give each file and request its server: its own word, matched by port, else the only server there is."""
        named, only = self._instances(), self._default_instance()
        ids = [file_id for file_id, _, _ in self.files]
        for file_id, member, name in self.files:
            if name not in {"vllm_log", "vllm_command", "kv_events", *CLIENTS}:
                continue
            own = self.own[file_id]
            if own and file_id in self.old and member.name not in self.asked:
                continue  # an earlier bundle, with more beside it, said whose it is
            alone = (
                own if name in {"vllm_log", *CLIENTS} and not _same_port(own or "", named) else None
            )  # a server without scrapes
            chosen = self.asked.get(member.name) or (own and (_match(own, named) or alone)) or only
            chosen = None if file_id in self.unsure else chosen
            self.store.execute("UPDATE source_file SET instance = ? WHERE file_id = ?", [chosen, file_id])
            if name == "kv_events":
                self.store.execute("UPDATE kv_event SET instance = ? WHERE file_id = ?", [chosen, file_id])
        for file_id, member, name in self.files:
            if name == "otlp_spans":
                self.store.execute(  # containers all count from 1: a process id that two servers have joins nothing
                    "UPDATE request SET instance = coalesce((SELECT CASE WHEN count(DISTINCT f.instance) = 1 THEN min(f.instance) END "
                    "FROM source_file AS f WHERE f.pid = request.pid AND list_contains(?, f.file_id)), ?) "
                    "WHERE file_id = ? AND instance IS NULL",
                    [ids, self.asked.get(member.name) or only, file_id],
                )
            elif name in CLIENTS:
                for (own,) in self.store.rows("SELECT DISTINCT instance FROM request WHERE file_id = ?", [file_id]):
                    if own and file_id in self.old:
                        continue
                    chosen = _match(own, named) if own else self.asked.get(member.name) or only
                    self.store.execute(
                        "UPDATE request SET instance = ? WHERE file_id = ? AND instance IS NOT DISTINCT FROM ?",
                        [chosen, file_id, own],
                    )

    def _align(self) -> None:
        """Put logs that have just been read on the clock of the metrics of their server."""
        for file_id, _, name in self.files:
            if name == "vllm_log" and file_id not in self.old:
                align(self.store, file_id)

    def _questions(self) -> dict[str, str]:
        """What could not be joined is asked, not guessed."""
        asked = {}
        for file_id, member, name in self.files:
            if member.name in self.apart and (said := untimed.question(member.name, self.groups)):
                asked[member.name] = said
            if (
                name in {"vllm_log", "kv_events", "vllm_command"}
                and self.store.rows("SELECT instance IS NULL FROM source_file WHERE file_id = ?", [file_id])[0][0]
            ):
                asked[member.name] = f"which server is this? The bundle has several: --instance {member.name}=HOST:PORT"
            if name == "otlp_spans":
                lost = self.store.rows("SELECT count(*) FROM request WHERE file_id = ? AND instance IS NULL", [file_id])[0][0]
                if lost:
                    asked[member.name] = (
                        f"{lost} spans belong to no known server: add its log, or --instance {member.name}=HOST:PORT"
                    )
        return asked


def _match(own: str, named: Sequence[str]) -> str | None:
    """The named server with the same host and port; else, for a bind-all or local address, the only one with this port."""
    same = [own] if own in named else _same_port(own, named)
    return same[0] if len(same) == 1 else None


def _same_port(own: str, named: Sequence[str]) -> list[str]:
    """The named servers with this port, where a bind-all or local address on either side lets them be the same."""
    host, _, port = own.rpartition(":")
    pairs = [(one, *one.rpartition(":")[::2]) for one in named]
    return [one for one, there, number in pairs if number == port and (host.startswith(LOCAL) or there.startswith(LOCAL))]


__all__ = ["BundleError", "FileResult", "load"]
