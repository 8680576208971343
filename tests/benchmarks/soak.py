"""Let the dashboard run: `python tests/benchmarks/soak.py [--minutes 120] [--engines 20] [--held 60]`, in everything that disturbs it.

`weaklink serve` collects every second from so many engines, each with all series of a recorded one. Meanwhile the engines restart
in groups, bundles are uploaded, somebody keeps the first page open, somebody else opens every page in turn (sessions over the
pages' socket), and two objectives are watched: one burns for five minutes of ten, one never; what they send is received and counted.

Each line is one look. At the end: the slope of the memory, what pages took by quarter, the CPU, and whether the store holds each
answer that an engine gave (each carries a number). `--held`: the store begins with so many minutes of these engines, so that the
live pages, which show the last hour, have as much to judge at the first look as at the last. `--memory-gb`: what the database may
take, so little that it is reached soon: else its cache grows for hours, and nobody sees whether the rest does.
"""

import argparse
import contextlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

import numpy as np
from websockets.sync.client import connect

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from alerts.receiver import Receiver  # noqa: E402
from benchmarks.pages import build, prepare  # noqa: E402
from benchmarks.soak_engines import Fleet  # noqa: E402
from streamlit.proto.BackMsg_pb2 import BackMsg  # noqa: E402
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg  # noqa: E402

from app import kept  # noqa: E402
from app.store import Store  # noqa: E402
from app.ui.screens import PAGES  # noqa: E402
from app.ui.shared import FOLLOW_S  # noqa: E402

LOG: Final = ROOT / "sample_data" / "formats" / "vllm_log" / "good" / "case-02.log"
LOOK_S: Final = 15.0
CHECKED_S: Final = 600.0
HELD_S: Final = 90.0  # what it takes to make what is held
START: Final = "from app.cli import main; main()"
CONFIG: Final = """
[retention]
memory_gb = {memory_gb}
[alerts]
interval = "15s"
[[slo]]
name = "burns"
kind = "ttft"
threshold = "500ms"
objective = "99%"
period = "1h"
pending = "10s"
keep = "30s"
burn = [{{severity = "page", budget = "10%", long = "2m", short = "30s"}}]
[[slo]]
name = "holds"
kind = "ttft"
threshold = "10s"
objective = "90%"
[[notify]]
name = "received"
kind = "webhook"
"""


class Session:
    """A page as a browser has it, over the socket: `open` asks for it and waits until all of it has come."""

    def __init__(self, port: int) -> None:
        url = f"ws://127.0.0.1:{port}/_stcore/stream"
        self.held = contextlib.ExitStack()
        self.socket = self.held.enter_context(connect(url, subprotocols=["streamlit"], max_size=None, compression=None))

    def open(self, page: str) -> tuple[float, int]:
        """Seconds until the page is drawn, and its bytes. RuntimeError: it shows an exception."""
        asked, began, size = BackMsg(), time.monotonic(), 0
        asked.rerun_script.query_string = ""
        asked.rerun_script.page_name = page
        self.socket.send(asked.SerializeToString())
        while True:
            answer = self.socket.recv(timeout=300)
            said = ForwardMsg.FromString(answer)
            size += len(answer)
            if said.WhichOneof("type") == "delta" and said.delta.new_element.WhichOneof("type") == "exception":
                raise RuntimeError(f"{page}: {said.delta.new_element.exception.message}")
            if said.WhichOneof("type") == "script_finished":
                return time.monotonic() - began, size


def follow(port: int, seen: list[tuple[float, str, float]], faults: list[str], stop: threading.Event) -> None:
    """Somebody who keeps the first page open."""
    with contextlib.suppress(OSError):
        held = Session(port)
        while not stop.wait(FOLLOW_S):
            try:
                seen.append((time.monotonic(), "followed", held.open("")[0]))
            except Exception as error:  # noqa: BLE001 counted, whatever it is
                faults.append(f"followed: {type(error).__name__}: {error}")
                held.held.close()
                held = Session(port)


def restarting(fleet: Fleet, began: float, stop: threading.Event) -> None:
    """The engines come and go, also while a page is drawn."""
    while not stop.wait(0.5):
        fleet.look(time.monotonic() - began)


def ask(url: str, body: bytes | None = None) -> tuple[float, str]:
    began = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(url, body, {"X-Weaklink": "soak"}), timeout=300) as answer:
        text = answer.read().decode()
    return time.monotonic() - began, text


def values(text: str, name: str) -> list[float]:
    return [float(one) for one in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)]


def sent_states(receiver: Receiver) -> Counter[str]:
    """What the receiver got, by objective and state."""
    found: Counter[str] = Counter()
    for one in receiver.got():
        body = json.loads(one.body)
        found[f"{body['alert']['slo']} {body['kind']}"] += 1
    return found


def judge(path: Path, answered: dict[str, set[int]], said: Counter[str]) -> None:
    """Compare the store with what the engines and the receiver counted."""
    with Store(path) as held:
        if held.notice:
            print(held.notice)
        stored: dict[str, list[int]] = defaultdict(list)
        for instance, serial in held.rows(
            "SELECT instance, value::BIGINT FROM every_sample JOIN series USING (series_id) WHERE name = 'vllm:soak_answer'"
        ):
            stored[instance].append(serial)
        failed = dict(held.rows("SELECT ok, count(*) FROM scrape JOIN source_file USING (file_id) WHERE live GROUP BY ok"))
        outbox = held.rows("SELECT count(*), count(sent_ts), count(dead_ts) FROM outbox")[0]
        print(kept_rows(held))
    missing = {name: sorted(found - set(stored[name])) for name, found in answered.items()}
    twice = sum(len(found) - len(set(found)) for found in stored.values())
    unknown = sum(len(set(found) - answered.get(name, set())) for name, found in stored.items())
    print(f"{sum(map(len, answered.values()))} answers by the engines, {failed.get(True, 0)} good scrapes in the store and "
          f"{failed.get(False, 0)} that failed; missing {sum(map(len, missing.values()))}, twice {twice}, never sent {unknown}")  # fmt: skip
    for name, lost in missing.items():
        for serial in lost[:5]:
            last = max(one for one in answered[name] if one // 1_000_000 == serial // 1_000_000)
            print(f"  missing {name} {serial}: {last - serial} answers before the end of its life")
    print(f"outbox: {outbox[0]} notifications, {outbox[1]} sent, {outbox[2]} given up; received {dict(said)}")


def kept_rows(held: Store) -> str:
    """Whether the rows that were kept while scrapes came in are those that the views compute of them."""
    kept.attach(held)
    last = held.rows("SELECT max(ts) FROM scrape WHERE ok")[0][0]
    span, differ, rows = {"low": last - CHECKED_S, "high": last}, 0, 0
    assert held.kept is not None
    assert held.kept(span["low"], span["high"])
    for name, columns in (("interval_row", "* EXCLUDE (epoch)"), ("bucket", "*")):
        text = f"SELECT {columns} FROM {{}} WHERE ts > $low AND ts <= $high{' AND n <> 0' * (name == 'bucket')}"
        seen, computed = (Counter(held.rows(text.format(place), span)) for place in (name, f"main.{name}"))
        differ += (seen - computed).total() + (computed - seen).total()
        rows += seen.total()
    return f"rows kept of the last {CHECKED_S / 60:g} minutes: {rows}; {differ} differ from what the views compute"


def told(memory: list[tuple[float, float, float]], seen: list[tuple[float, str, float]], began: float) -> None:
    """The slopes: memory over the second half, pages by quarter."""
    half = memory[len(memory) // 2 :]
    if len(half) > 2:
        at, used, held = np.array(half).T
        slope, cached = (60 * np.polyfit(at, of, 1)[0] for of in (used, held))
        print(
            f"memory over the second half: {slope:+.1f} MB an hour ({cached:+.1f} of the database's cache), {used.min():.0f} to {used.max():.0f} MB"
        )
    end = max(ts for ts, _, _ in seen)
    quarters: dict[str, list[list[float]]] = defaultdict(lambda: [[], [], [], []])
    for ts, page, took in seen:
        quarters[page][min(3, int(4 * (ts - began) / (end - began)))].append(took)
    for page, parts in quarters.items():
        print(f"  {page:12} median s by quarter: " + "  ".join(f"{statistics.median(one):6.2f}" if one else "     -" for one in parts))  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--minutes", type=float, default=120.0)
    asked.add_argument("--engines", type=int, default=20)
    asked.add_argument("--held", type=float, default=60.0)
    asked.add_argument("--memory-gb", type=float, default=0.3)
    asked.add_argument("--port", type=int, default=18099)
    given = asked.parse_args()
    port, memory, faults = given.port, [], []
    seen: list[tuple[float, str, float]] = []
    with tempfile.TemporaryDirectory(prefix="weaklink-soak-") as folder, Receiver() as receiver:
        store, config = Path(folder) / "a.duckdb", Path(folder) / "weaklink.toml"
        fleet = Fleet([port + 1 + at for at in range(given.engines)])
        config.write_text(
            f'{CONFIG.format(memory_gb=given.memory_gb)}url = "{receiver.url}"\n' + "".join(f'[[target]]\nurl = "127.0.0.1:{one}"\n' for one in fleet.ports)
        )
        if given.held:
            build(store, list(fleet.answered), time.time() - 60 * given.held - HELD_S, given.held / 60, 1.0)
            prepare(store)
        fleet.begin()
        command = [
            sys.executable,
            "-c",
            START,
            "serve",
            "--port",
            str(port),
            "--no-browser",
            "--store",
            str(store),
            "--config",
            str(config),
        ]
        out = Path(folder) / "serve.log"
        with out.open("wb") as written:
            serving = subprocess.Popen(
                command, stdout=written, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}
            )
        url, stop = f"http://127.0.0.1:{port}", threading.Event()
        for _ in range(120):
            time.sleep(1)
            with contextlib.suppress(OSError):
                ask(f"{url}/healthz")
                break
        began = time.monotonic()
        threading.Thread(target=follow, args=(port, seen, faults, stop), daemon=True).start()
        coming = threading.Thread(target=restarting, args=(fleet, began, stop))
        coming.start()
        at, said, spent = 0, "", 0.0
        while time.monotonic() < began + 60 * given.minutes and serving.poll() is None:
            page = PAGES[at % len(PAGES)].__name__.rpartition(".")[2]
            took, size, upload = float("nan"), 0, float("nan")
            try:
                one = Session(port)
                with one.held:
                    took, size = one.open("" if page == "overview" else page)
                seen.append((time.monotonic(), page, took))
                if at % 4 == 0:
                    upload, said = ask(f"{url}/api/bundles?name=s{at}.log", LOG.read_bytes() + b"\n" * at)
                    assert json.loads(said)["files"][0]["format"] == "vllm_log", said
                own, text = ask(f"{url}/metrics")
            except Exception as error:  # noqa: BLE001 counted, whatever it is
                faults.append(f"{page}: {type(error).__name__}: {error}")
                at += 1
                continue
            now, before, spent = (time.monotonic() - began) / 60, spent, values(text, "process_cpu_seconds_total")[0]
            held = sum(values(text, "weaklink_database_memory_bytes")) / 1e6
            memory.append((now, values(text, "process_resident_memory_bytes")[0] / 1e6, held))
            print(f"{now:6.1f} min {memory[-1][1]:6.0f} MB ({held:5.0f} of the database), "
                  f"{spent - before:5.1f} s of CPU since the look before, {100 * spent / (60 * now):3.0f} % of a core in all, lag {max(values(text, 'weaklink_lag_seconds'), default=float('nan')):4.1f} s, "
                  f"{sum(values(text, 'weaklink_scrapes_total')):7.0f} scrapes, dropped {sum(values(text, 'weaklink_dropped_total')):.0f}, skipped {sum(values(text, 'weaklink_skipped_total')):.0f}, "
                  f"{page} {took:.2f} s {size / 1e3:.0f} kB, upload {upload:.2f} s, metrics {own:.2f} s, {len(receiver.got())} notified, {len(faults)} faults", flush=True)  # fmt: skip
            at += 1
            time.sleep(LOOK_S)
        stop.set()
        coming.join()
        fleet.end()
        time.sleep(3)  # what was answered last is on its way
        if serving.poll() is None:
            serving.terminate()
        print("ended with", serving.wait(60))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"CPU of all that ran: {used.ru_utime + used.ru_stime:.0f} s in {time.monotonic() - began:.0f} s")
        told(memory, seen, began)
        judge(store, fleet.answered, sent_states(receiver))
        print(f"{store.stat().st_size / 1e6:.0f} MB of store; {len(faults)} faults")
        for fault in faults[:20]:
            print(" ", fault)
        print(out.read_text(errors="replace")[-3000:])


if __name__ == "__main__":
    main()
