"""Feed every reader, and the opener of archives, what nobody would write: `python -m tests.fuzz --inputs 1000000` (nightly).

Inputs are pieces of the samples, changed: bits, bytes, numbers, words of other formats, lines doubled, swapped and cut, JSON nested
deep, archives with lengths that lie. No input may raise, take a second of CPU, or give more than the bytes that came can say.
An input that fails is written to a file (--out) together with the seed; it belongs into sample_data/formats/<format>/bad then.
"""

import argparse
import gzip
import hashlib
import io
import json
import random
import re
import resource
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from app.collectors.formats import FORMATS, MAX_REJECTED
from app.collectors.sources import bundle
from app.collectors.sources.bundle import BundleError, members
from app.store import Store

SAMPLES: Final = Path(__file__).resolve().parent.parent / "sample_data" / "formats"
NOON: Final = 1795953600.0
PIECE: Final = 2500  # bytes of a sample that an input begins with
LONGEST_S: Final = 1.0  # CPU seconds
CELLS_A_BYTE: Final = 40  # values that a byte of input may become
MOST_MB: Final = 600  # that the process may grow
ARCHIVE: Final = "archive"
WORDS: Final = (
    *(b"NaN", b"+Inf", b"-Inf", b"1e999", b"-1", b"0", b"9" * 400, b"1" + b"0" * 30, b"0x10", b"1_000", b"\xd9\xa3", b"1e-320"),
    *(b"null", b"true", b'""', b"{}", b"[]", b'{"a":', b"[" * 3000, b'{"a":' * 1500, b'"' * 50, b"\\", b"\\u0000", b"\\ud800"),
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\r",
        b"\r\n",
        b"\n" * 50,
        b"\x1b[31m",
        b"\t" * 100,
        b"=" * 2000,
        b"(" * 2000,
        b" " * 5000,
    ),
    *(
        b"vllm:num_requests_running",
        b'{engine="0"}',
        b"# TYPE x counter",
        b"Engine 000:",
        b"INFO 02-30 25:61:61",
        b"--max-num-seqs",
    ),
    *(
        b"<script>alert(1)</script>",
        b"=cmd|'/c calc'!A1",
        b"'; DROP TABLE sample; --",
        b"../../etc/passwd",
        b"%s%n%x",
        b"{{7*7}}",
    ),
)
NUMBER: Final = re.compile(rb"-?\d+(?:\.\d+)?")


@dataclass
class Finding(Exception):  # noqa: N818 what was found, not what went wrong
    """An input that does what none may."""

    reader: str
    why: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.reader}: {self.why} ({len(self.data)} bytes, sha256 {hashlib.sha256(self.data).hexdigest()[:12]})"


def corpus(name: str) -> list[bytes]:
    """The samples of a format, unpacked."""
    files = [file for file in sorted((SAMPLES / name).glob("*/*")) if file.is_file() and file.name != "manifest.toml"]
    found = []
    for file in files:
        data = file.read_bytes()
        if file.suffix == ".gz":
            try:
                data = gzip.decompress(data)
            except (OSError, EOFError):
                continue
        found.append(data)
    return found


def piece(chance: random.Random, texts: list[bytes]) -> bytes:
    """Some lines of a sample; of one long line, its beginning."""
    text = chance.choice(texts)
    if len(text) <= PIECE:
        return text
    if chance.random() < 0.3:
        return text[:PIECE]
    at = text.rfind(b"\n", 0, chance.randrange(len(text))) + 1
    return text[at : at + chance.randrange(1, PIECE)]


def changed(chance: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """The input with one to eight changes."""
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        data = chance.choice(CHANGES)(chance, data, others)
    return data[: 8 * PIECE]


def _flip(chance: random.Random, data: bytes, _: list[bytes]) -> bytes:
    if not data:
        return b"\x00"
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _insert(chance: random.Random, data: bytes, _: list[bytes]) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(WORDS) + data[at:]


def _cut(chance: random.Random, data: bytes, _: list[bytes]) -> bytes:
    low, high = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    return data[:low] + data[high:] if high - low < len(data) / 2 else data[:high]


def _double(chance: random.Random, data: bytes, _: list[bytes]) -> bytes:
    low, high = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    return data[:high] + data[low:high] * chance.choice((1, 2, 5)) + data[high:]


def _swap(chance: random.Random, data: bytes, _: list[bytes]) -> bytes:
    lines = data.splitlines(keepends=True)
    chance.shuffle(lines)
    return b"".join(lines)


def _number(chance: random.Random, data: bytes, _: list[bytes]) -> bytes:
    found = list(NUMBER.finditer(data))
    if not found:
        return data
    one = chance.choice(found)
    return data[: one.start()] + chance.choice(WORDS[:12]) + data[one.end() :]


def _splice(chance: random.Random, data: bytes, others: list[bytes]) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + piece(chance, others) + data[at:]


def _noise(chance: random.Random, data: bytes, _: list[bytes]) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.choice((1, 4, 64))) + data[at:]


CHANGES: Final[tuple[Callable[[random.Random, bytes, list[bytes]], bytes], ...]] = (
    _flip, _flip, _insert, _insert, _cut, _double, _swap, _number, _number, _splice, _noise,
)  # fmt: skip


# -- what must hold -----------------------------------------------------------------------------------------------------------
def check_reader(module: ModuleType, data: bytes, store: Store) -> None:
    """Read one input; Finding says what is wrong with what came of it."""
    began = time.process_time()
    try:
        module.sniff(data[: 64 * 1024])
        batches = list(module.read(io.BytesIO(data), NOON))
        cells = 0
        for batch in batches:
            columns = dict(batch.columns)
            for name in ("series",):
                if name in columns and batch.table in {"series", "sample"}:
                    columns["series_id"] = columns.pop(name)
            table = store.table(type(batch)(batch.table, columns))
            cells += table.num_rows * table.num_columns
            for name, values in columns.items():
                if isinstance(values, np.ndarray) and values.dtype.kind == "f" and np.isinf(values).any():
                    raise Finding(module.NAME, f"infinite {batch.table}.{name}", data)  # noqa: TRY301
    except Finding:
        raise
    except Exception as error:
        raise Finding(module.NAME, f"{type(error).__name__}: {error}", data) from error
    spent = time.process_time() - began
    if spent > LONGEST_S:
        raise Finding(module.NAME, f"took {spent:.1f} s", data)
    if cells > CELLS_A_BYTE * len(data) + 200:
        raise Finding(module.NAME, f"{cells} values", data)
    fact = {name: values[0] for name, values in batches[-1].columns.items()}
    kept = sum(len(batch.columns["line"]) for batch in batches if batch.table == "rejected_line")
    if batches[-1].table != "source_file" or kept > MAX_REJECTED or not kept <= fact["rejected"] <= fact["lines"]:
        raise Finding(module.NAME, f"{kept} lines kept, {fact['rejected']} rejected of {fact['lines']}", data)


def archives(chance: random.Random) -> list[bytes]:
    """Archives of every kind with a few members, to begin with."""
    texts = [corpus(module.NAME)[0][:600] for module in FORMATS]
    names = ["server.log", "a/metrics.txt", "../up", "/etc/passwd", "C:\\x", "a" * 300, "n\x00ul", "é✓", ".hidden", "dir/"]
    made = []
    for kind in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        raw = io.BytesIO()
        with zipfile.ZipFile(raw, "w", kind) as archive:
            for name in chance.sample(names, 4):
                archive.writestr(name.replace("\x00", "") or "x", chance.choice(texts))
        made.append(raw.getvalue())
    for mode in ("w", "w:gz"):
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode=mode) as archive:
            for name in chance.sample(names, 4):
                text = chance.choice(texts)
                info = tarfile.TarInfo(name.replace("\x00", ""))
                info.size = len(text)
                info.type = chance.choice((tarfile.REGTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE))
                info.linkname = chance.choice(("/etc/passwd", "../../x", "server.log"))
                archive.addfile(info, io.BytesIO(text))
        made.append(raw.getvalue())
    made.append(gzip.compress(chance.choice(texts)))
    return made


def check_archive(data: bytes, folder: Path) -> None:
    """Open one archive and read its members to the end."""
    path = folder / "in" / "x.zip"
    path.write_bytes(data)
    began = time.process_time()
    try:
        with members(path) as found:
            for member in found:
                if member.path is None:
                    continue
                if not member.path.resolve().is_relative_to(Path(tempfile.gettempdir()).resolve()):
                    raise Finding(ARCHIVE, f"{member.name} lies at {member.path}", data)  # noqa: TRY301
                with member.open() as stream:
                    seen = 0
                    while part := stream.read(1 << 16):
                        seen += len(part)
                if seen > bundle.MAX_UNPACKED_BYTES + (1 << 20):
                    raise Finding(ARCHIVE, f"{seen} bytes of {member.name}", data)  # noqa: TRY301
    except (BundleError, Finding) as error:
        if isinstance(error, Finding):
            raise
    except Exception as error:
        raise Finding(ARCHIVE, f"{type(error).__name__}: {error}", data) from error
    spent = time.process_time() - began
    if spent > LONGEST_S:
        raise Finding(ARCHIVE, f"took {spent:.1f} s", data)
    if {one.name for one in folder.iterdir()} != {"in"}:
        raise Finding(ARCHIVE, f"files appeared: {list(folder.iterdir())}", data)


def most_mb() -> float:
    """The most memory that the process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


# -- runs ---------------------------------------------------------------------------------------------------------------------
def run(inputs: int, seed: int, names: list[str] | None = None, keep: Callable[[Finding], None] | None = None) -> dict[str, int]:
    """So many inputs for each reader and for archives; `keep` gets findings, without it the first is raised."""
    done: dict[str, int] = {}
    wanted = names or [*(module.NAME for module in FORMATS), ARCHIVE]
    by_name: dict[str, Any] = {module.NAME: module for module in FORMATS}
    others = [text for module in FORMATS for text in corpus(module.NAME)]
    before = most_mb()
    with Store() as store, tempfile.TemporaryDirectory(prefix="weaklink-fuzz-") as place:
        folder = Path(place)
        (folder / "in").mkdir()
        for name in wanted:
            chance = random.Random(f"{seed} {name}")
            texts = archives(chance) if name == ARCHIVE else corpus(name)
            for at in range(inputs):
                data = chance.choice(texts) if name == ARCHIVE else piece(chance, texts)
                data = changed(chance, data, others)
                try:
                    if name == ARCHIVE:
                        check_archive(data, folder)
                    else:
                        check_reader(by_name[name], data, store)
                    grown = most_mb() - before
                    if grown > MOST_MB:
                        before += grown
                        raise Finding(name, f"the process grew by {grown:.0f} MB", data)  # noqa: TRY301
                except Finding as found:
                    found.add_note(f"input {at} of seed {seed}")
                    if keep is None:
                        raise
                    keep(found)
            done[name] = inputs
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="for each reader")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--reader", action="append")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"))
    given = parser.parse_args()
    seen: dict[str, int] = {}

    def keep(found: Finding) -> None:
        key = f"{found.reader} {re.sub(r'[0-9]+', '0', found.why)[:60]}"
        seen[key] = seen.get(key, 0) + 1
        if seen[key] == 1:
            given.out.mkdir(exist_ok=True)
            (given.out / f"{found.reader}-{hashlib.sha256(found.data).hexdigest()[:12]}").write_bytes(found.data)
            print(found, *found.__notes__, flush=True)

    began = time.process_time()
    done = run(given.inputs, given.seed, given.reader, keep)
    print(json.dumps({"seed": given.seed, "inputs": done, "findings": seen, "cpu_s": round(time.process_time() - began, 1)}))
    sys.exit(bool(seen))


if __name__ == "__main__":
    main()
