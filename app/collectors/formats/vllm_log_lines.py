"""The lines of a vLLM server log: heads, transports, and the records that come by the million.

Formats as vLLM 0.8.5 to 0.33.0 prints them: vllm/logging_utils/formatter.py (heads), vllm/v1/metrics/loggers.py and
vllm/v1/engine/core.py (stats, iterations), vllm/engine/metrics.py (stats of V0), uvicorn/logging.py (access lines).

A number is matched as a whole run of digits and all between the numbers literally. So two lines that differ only in their
digits are both records or neither, which `vllm_log` relies on.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

Match = re.Match[bytes]
Groups = dict[str, bytes | None]

NAN: Final = float("nan")
TOO_BIG: Final = 1e15  # from here on a float is no exact integer; no counter of a server is as large

# ---------------------------------------------------------------------------------------------------------- heads

# docker logs -t, kubectl logs --timestamps, CRI (`stdout F`), journalctl -o short-iso, all with or without a zone's colon
_ISO: Final = (
    rb"(?P<iy>\d+)-(?P<im>\d+)-(?P<id>\d+)T(?P<ih>\d+):(?P<in>\d+):(?P<is>\d+(?:\.\d+)?)"
    rb"(?:Z|(?P<zs>[+-])(?:(?P<zh>\d+):(?P<zm>\d+)|(?P<zc>\d+)))"
)
_UNIT: Final = rb"[\w.-]+ [^\s\[(]+\[\d+\]: "  # host, unit[pid]
# Groups in a possessive repeat (`)*+`) raise a SystemError where two of its branches match (Python 3.11 and 3.12): counted ones, then.
_TRANSPORT: Final = (
    rb"(?:" + _ISO + rb" (?! *[A-Z]+ +[A-Za-z_])(?:std(?:out|err) [A-Z] )?(?:" + _UNIT + rb")?"  # not Dynamo's head
    rb"|[A-Z][a-z][a-z] +\d+ \d+:\d+:\d+ " + _UNIT + rb"|[\w./-]+ +\| "
    rb"|\[pod/[^\]\s]+\] |\[\d+-\d+-\d+[ T]\d+:\d+:\d+(?:[.,]\d+)?\] ){0,8}"
)
_PROCESS: Final = rb"(?:\((?P<process>[A-Za-z]+)(?:_(?:DP)?(?P<rank>\d+))?(?:[_ ][A-Z]+\d+)*(?: rank=\d+)? pid=(?P<pid>\d+)\) ){0,8}"
_OWN: Final = rb"(?P<om>\d+)-(?P<od>\d+) (?P<oh>\d+):(?P<on>\d+):(?P<os>\d+) \[?[\w./-]+:\d+\] "
_LEVEL: Final = rb"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_PAIR: Final = rb'"\w+": (?:"[^"\\]*"|\d+|null|true|false)'
_JSON: Final = (
    rb'\{"asctime": "(?P<jy>\d+)-(?P<jm>\d+)-(?P<jd>\d+) (?P<jh>\d+):(?P<jn>\d+):(?P<js>\d+),(?P<jf>\d+)"(?:, '
    + _PAIR
    + rb')*?, "message": "'
)
_JSON_END: Final = rb'"(?:, ' + _PAIR + rb")*+\}"

# A record may begin anywhere on a line: behind a progress bar, or behind another record whose line end was lost.
_START: Final = (
    rb"(?:" + _ISO + rb" (?:std(?:out|err) [A-Z] )?)?" + _PROCESS + _LEVEL + rb"(?: (?=\d+-)" + _OWN + rb"|:  +(?=\S* ?- \"))"
    rb"|" + re.sub(rb"\?P<(\w+)>", rb"?P<\1_b>", _ISO + rb" +" + _LEVEL) + rb" +[\w.:]+: "  # Dynamo
    rb"|(?P<cy>\d+)-(?P<cm>\d+)-(?P<cd>\d+) (?P<ch>\d+):(?P<cn>\d+):(?P<cs>\d+)(?:[.,](?P<cf>\d\d\d))?"
    rb" - [\w.]{1,100} - [A-Z]{1,9} - "
)
START: Final = re.compile(_START.replace(rb"\d+", rb"\d{1,9}+"))  # bounded: it is tried at each place of a line
TRANSPORT: Final = re.compile(_TRANSPORT)
_STAMP: Final = re.compile(_ISO)

# ---------------------------------------------------------------------------------------------------------- bodies

_STEP: Final = (
    rb"Iteration\((?P<iteration>\d+)\)(?P<dummy_a> \(dummy\))?: (?P<context_requests>\d+) context requests, "
    rb"(?P<context_tokens>\d+) context tokens, (?P<generation_requests>\d+) generation requests, "
    rb"(?P<generation_tokens>\d+) generation tokens, iteration elapsed time: (?P<elapsed>\d+\.\d+) ms(?P<dummy_b> \(dummy\))?"
    rb"(?:, \w+ KV cache usage: (?P<kv>\d+\.\d+)%)?(?:, encoder inputs: \d+, encoder output embeddings: \d+)?"
)
_RATES: Final = (
    rb"Avg prompt throughput: (?P<prompt>\d+\.\d+) tokens/s, Avg generation throughput: (?P<generation>\d+\.\d+) tokens/s, "
    rb"Running: (?P<running>\d+) reqs, "
)
# "Preemptions" and "Corrupted" are dead: log() resets the counters before it reads them (0.12 to 0.33).
_V1: Final = (
    rb"Waiting: (?P<waiting>\d+) reqs(?:, Deferred: (?P<deferred>\d+) reqs)?"
    rb"(?:, KV fetch: \d+ waiting to start, \d+ in progress, \d+ completed waiting)?(?:, Preemptions: \d+)?"
    rb", \w+ KV cache usage: (?P<kv>\d+\.\d+)%(?:, Prefix cache hit rate: (?P<prefix>\d+\.\d+)%)?(?:, Corrupted: \d+ reqs)?"
    rb"(?:, External prefix cache hit rate: (?P<external>\d+\.\d+)%)?(?:, MM cache hit rate: (?P<mm>\d+\.\d+)%)?"
)
_V0: Final = (
    rb"Swapped: \d+ reqs, Pending: (?P<waiting>\d+) reqs, GPU KV cache usage: (?P<kv>\d+\.\d+)%, CPU KV cache usage: \d+\.\d+%\."
)
_ENGINE: Final = rb"Engine (?P<engine>\d+): "
_CALL: Final = rb'(?P<call>\\?"[A-Z]+ [^\s"]+ HTTP/\d+\.\d+\\?" (?P<status>\d+)(?: [\w \'-]+)?)'
BODIES: Final = {  # kind -> bodies of one; none of them contains a quotation mark or backslash, so they are the same in JSON
    "step": (rb"(?:" + _ENGINE + rb")?" + _STEP,),
    "stat": (_ENGINE + _RATES + _V1, _RATES + _V0),
    "aggregate": (rb"(?P<engines>\d+) Engines Aggregated: " + _RATES + _V1,),
    "access": (rb"\S* ?- " + _CALL,),
}
FIELDS: Final = {
    "step": ("iteration", "context_requests", "context_tokens", "generation_requests", "generation_tokens", "elapsed", "kv"),
    "stat": ("prompt", "generation", "running", "waiting", "deferred", "kv", "prefix", "external", "mm"),
}
STAMPS: Final = (  # groups with numbers: the log's own stamp, JSON's, a container's, its zone
    *("om", "od", "oh", "on", "os"),
    *("jy", "jm", "jd", "jh", "jn", "js", "jf"),
    *("iy", "im", "id", "ih", "in", "is", "zh", "zm", "zc"),
)
BODY: Final = {kind: tuple(re.compile(body) for body in bodies) for kind, bodies in BODIES.items()}


def _whole(kind: str) -> tuple[re.Pattern[bytes], ...]:
    """Patterns of a line that holds one frequent record and nothing else, as text and as JSON."""
    head = rb"INFO: +" if kind == "access" else rb"(?:INFO|DEBUG) " + _OWN
    text = [_TRANSPORT + _PROCESS + head + body for body in BODIES[kind]]
    # iteration lines without an engine are labelled by their process: in JSON that stands behind the message
    as_json = [_TRANSPORT + _JSON + body.replace(rb"(?:" + _ENGINE + rb")?", _ENGINE) + _JSON_END for body in BODIES[kind]]
    return tuple(re.compile(pattern) for pattern in (*text, *as_json))


WHOLE: Final = {kind: _whole(kind) for kind in ("step", "stat", "access")}
LITERALS: Final = {"step": b"Iteration(", "stat": b"throughput: ", "access": b" HTTP/"}


class Stamp(NamedTuple):
    """The times that a line shows: `own` as day code and seconds of the day, `iso` in epoch seconds (NaN: none).

    `code` is month * 100 + day, 0 without a stamp, -1 if there is no such time. `year` is 0 if the stamp has none.
    """

    year: int = 0
    code: int = 0
    tod: float = 0.0
    iso: float = NAN
    fine: bool = False


def number(raw: bytes | None) -> float:
    """Return a number as matched, NaN for none."""
    return NAN if raw is None else float(raw)


def engine_of(found: Groups) -> int:
    """Return the engine that a line names, by its data-parallel rank; 0 where its version has one engine only."""
    return whole(found.get("engine") or found.get("rank") or b"0")


def whole(raw: bytes) -> int:
    """Return an integer as matched, an absurd one as a billion."""
    return int(min(float(raw), 1e9))


def clock(hour: float, minute: float, second: float) -> float:
    """Return seconds of the day, NaN where there is no such time."""
    return hour * 3600 + minute * 60 + second if hour < 24 and minute < 60 and second < 61 else NAN


def epoch(found: Groups, suffix: str = "") -> float:
    """Return a container's stamp in epoch seconds; NaN where there is none, or no such time."""
    parts = [found.get(name + suffix) for name in ("iy", "im", "id", "ih", "in", "is")]
    if None in parts:
        return NAN
    year, month, day, hour, minute, second = (float(part or 0) for part in parts)
    east, north, compact = (float(found.get(name + suffix) or 0) for name in ("zh", "zm", "zc"))
    if compact:  # +0200 or +02
        east, north = (compact, 0) if compact <= 24 else divmod(compact, 100)
    zone = clock(east, north, 0)
    return day_start(year, month, day) + clock(hour, minute, second) - (-zone if found.get("zs" + suffix) == b"-" else zone)


def day_start(year: float, month: float, day: float) -> float:
    """Return the epoch seconds of a day (UTC), NaN where there is no such day."""
    try:
        return datetime(int(year), int(month), int(day), tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return NAN


def stamp_of(found: Groups, outer: float = NAN) -> Stamp:
    """Return the times of a matched head; `outer` is a container's stamp found further left."""
    iso = outer
    for suffix in ("", "_b"):
        if found.get("iy" + suffix) is not None:
            iso = epoch(found, suffix)
            if iso != iso:  # noqa: PLR0124 (NaN: no such time)
                return Stamp(code=-1)
    for letter in "ojc":
        month = found.get(letter + "m")
        if month is not None:
            day, hour, minute, second = (found.get(letter + part) for part in "dhns")
            year = whole(found.get(letter + "y") or b"-1")
            fraction = found.get(letter + "f")
            tod = clock(number(hour), number(minute), number(second)) + (0.0 if fraction is None else float(fraction) / 1000)
            code = whole(month) * 100 + whole(day or b"0")
            broken = tod != tod or year == 0 or whole(day or b"0") > 31 or number(fraction or b"0") > 999  # noqa: PLR0124
            return Stamp(max(year, 0), -1 if broken else code, tod, iso, fine=fraction is not None or iso % 1 > 0)
    return Stamp(iso=iso, fine=iso % 1 > 0)


def row_of(kind: str, found: Groups) -> dict[str, float] | None:
    """Return the numbers of a step or stat by name (ratios still in percent, NaN if not shown); None where one is absurd."""
    values = {name: number(found.get(name)) for name in FIELDS[kind]}
    if kind == "step":
        values["dummy"] = float(found.get("dummy_a") is not None or found.get("dummy_b") is not None)
    return None if any(value >= TOO_BIG for value in values.values()) else values


# --------------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True, slots=True)
class Record:
    """One log record: its message, and its head, which is taken apart only where the message says something."""

    body: bytes
    head: Match | None = None
    given: Groups | None = None  # of a record without a textual head
    outer: float = NAN  # a container's stamp further left

    @property
    def found(self) -> Groups:
        """Groups of the head: times, level, process, rank, pid."""
        return self.given if self.given is not None else self.head.groupdict() if self.head else {}


_MORE: Final = re.compile(rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: +\d|:  | +[\w.:]+: | - )")
# their text is the user's: nothing on such a line is another record
_PRIVATE: Final = re.compile(
    rb"Received request |Generated response |Request \S+ details: |Dumping (?:input data|scheduler output)|prompt: "
    rb"|.{0,80}prompt_token_ids"
)


def begins(line: bytes) -> bool:
    """Tell whether a record starts where the transport's prefix ends; if not, the line may continue the one before."""
    at = behind_transport(line)
    return line.startswith(b"{", at) or START.match(line, at) is not None


def behind_transport(line: bytes) -> int:
    """Return where a line begins behind what its transport put before it."""
    match = TRANSPORT.match(line)
    return match.end() if match else 0


def records(line: bytes) -> list[Record]:
    """Return the records of a line. Raises ValueError for a JSON record that is none."""
    transport = TRANSPORT.match(line)
    at = transport.end() if transport else 0
    outer = epoch(transport.groupdict()) if transport and transport["iy"] is not None else NAN
    if line.startswith(b"{", at):
        return list(_json_records(line[at:], outer))
    first = START.match(line, at)
    if first is None and not _MORE.search(line, at):
        return []
    if first is not None and (_PRIVATE.match(line, first.end()) or not _MORE.search(line, first.end())):
        return [Record(line[first.end() :].rstrip(b" \t\r"), first, outer=outer)]
    return list(_pieces(line, list(START.finditer(line, at)), outer))


def _pieces(line: bytes, heads: list[Match], outer: float) -> Iterator[Record]:
    """Part a line where records begin. A prompt takes the rest of the line, whatever it quotes."""
    stamp = _STAMP.search(line, 0, heads[0].start()) if heads else None
    outer = epoch(stamp.groupdict()) if stamp else outer
    for at, head in enumerate(heads):
        private = _PRIVATE.match(line, head.end())
        end = len(line) if private or at + 1 == len(heads) else heads[at + 1].start()
        yield Record(line[head.end() : end].rstrip(b" \t\r"), head, outer=outer)
        if private:
            return


def _json_records(text: bytes, outer: float) -> Iterator[Record]:
    decoder, at = json.JSONDecoder(), 0
    whole_text = text.decode("utf-8", "replace").strip()
    while at < len(whole_text):
        try:
            value, at = decoder.raw_decode(whole_text, at)
        except RecursionError as error:
            raise ValueError from error
        if isinstance(value, dict):
            yield from _json_record(value, outer)


def _json_record(value: dict[str, Any], outer: float) -> Iterator[Record]:
    """Yield the record of vLLM's JSON formatter, or those inside of a line of Docker's json-file log."""
    inner = value.get("log")
    if isinstance(inner, str):
        time = value.get("time")
        stamp = f"{time} " if isinstance(time, str) else ""
        yield from records((stamp + inner.rstrip("\r\n")).encode("utf-8", "replace"))
        return
    message = value.get("message")
    if not isinstance(message, str):
        return
    texts = {"at": value.get("asctime"), "level": value.get("levelname"), "pid": value.get("process")}
    texts["name"] = value.get("vllm_process_name") or value.get("processName")
    raw = {name: str(text).encode("utf-8", "replace") for name, text in texts.items()}
    found: Groups = {"level": raw["level"]}
    for match in (_ASCTIME.match(raw["at"]), _NAME.fullmatch(raw["name"])):
        found.update(match.groupdict() if match else {})
    found["pid"] = raw["pid"] if raw["pid"].isdigit() else None
    yield Record(message.encode("utf-8", "replace").rstrip(), given=found, outer=outer)


_ASCTIME: Final = re.compile(
    rb"(?P<jy>\d+)-(?P<jm>\d+)-(?P<jd>\d+)[ T](?P<jh>\d+):(?P<jn>\d+):(?P<js>\d+)(?:[.,](?P<jf>\d\d\d))?"
)
_NAME: Final = re.compile(rb"(?P<process>[A-Za-z]+)(?:_(?:DP)?(?P<rank>\d+))?(?:_[A-Z]+\d+)*")
