"""Kill the program at random moments and look at what is left: `python -m tests.crash --kills 200` (nightly), 10 in the suite.

A child works on a store: it collects, closes and thins days, makes backups, opens (and so migrates) an older store, delivers
notifications. It writes down, to a pipe, each thing that it has finished. It is killed with SIGKILL; then the store must open, hold
all that was told as finished and nothing twice, and say that the last process did not close it. A backup is whole or not there. A
notification comes at least once, and again at most where the kill came between its delivery and the note of it.
"""

import argparse
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from app.alerts.definitions import TEMPLATE_FIELDS, Definitions, Notifier
from app.alerts.notify import deliver
from app.backup import pieces, restore, write
from app.live import followed
from app.live.scraped import put
from app.retention import Policy, keep
from app.store import Store
from tests.alerts.receiver import Got, Receiver

ROOT: Final = Path(__file__).resolve().parent.parent
OLD: Final = ROOT / "tests" / "stores" / "0001.duckdb.gz"
DAY_S: Final = 86400.0
MIDNIGHT: Final = 1795910400.0
SCENES: Final = ("load", "rollup", "backup", "migrate", "ingest", "notify")
BATCH: Final = 40  # scrapes a transaction
NAMES: Final = ("vllm:generation_tokens_total", "vllm:e2e_request_latency_seconds_count", "vllm:prompt_tokens_total")


def lines(first: int, step: float) -> list[dict]:
    """Scrapes whose counters say how many came before: nothing can be lost or doubled unseen."""
    return [
        {
            "t": MIDNIGHT + at * step, "url": "http://h:1/metrics", "dur": 0.0,
            "text": "".join(f'{name}{{engine="0",model_name="m"}} {at}\n' for name in NAMES) + "process_start_time_seconds 1\n",
        }
        for at in range(first, first + BATCH)
    ]  # fmt: skip


def work(scene: str, folder: Path) -> None:
    """What the child does until it is killed."""
    print("start", flush=True)
    with Store(folder / "a.duckdb") as store:
        print("open", flush=True)
        if scene == "migrate":
            return
        if scene == "notify":
            notify(store, (folder / "url").read_text())
        feeds: dict = {}
        step = 300.0 if scene == "rollup" else 1.0
        last = store.rows("SELECT max(ts) FROM scrape")[0][0]
        at = 0 if last is None else round((last - MIDNIGHT) / step) + 1
        number = 0
        while True:
            put(store, feeds, lines(at, step))
            at += BATCH
            print("stored", at, flush=True)
            number += 1
            if scene == "rollup" and number % 6 == 0:
                keep(store, Policy(raw_days=1, minute_days=3), MIDNIGHT + at * 300.0)
                print("kept", at, flush=True)
            if scene == "backup" and number % 3 == 0:
                write(pieces(store), folder / f"{number}.tar")
            if scene == "ingest":
                take_log(store, at)


def to(url: str) -> Definitions:
    return Definitions(notifiers=(Notifier("receiver", "webhook", url),))


def notify(store: Store, url: str) -> None:
    """Write notifications, each with its number, and deliver them."""
    while True:
        (number,) = store.rows("SELECT count(*) FROM outbox")[0]
        with store.transaction():
            store.execute(
                "INSERT INTO outbox VALUES (nextval('outbox_id_seq'), 'receiver', 1, 'fired', ?, ?, ?, 0, 0, NULL, NULL, NULL)",
                [
                    f"{number}",
                    json.dumps({"id": f"{number}", "number": number, "fields": dict.fromkeys(TEMPLATE_FIELDS, "")}),
                    time.time(),
                ],
            )
        print("stored", number + 1, flush=True)
        deliver(store, to(url))


def received(store: Store, folder: Path, stored: int, got: list[Got]) -> int:
    """Hold the outbox against what the receiver got: nothing lost, and what was sent again bears the token it had."""
    numbers = [json.loads(one.body)["number"] for one in got]
    ((highest,),) = store.rows("SELECT count(*) FROM outbox")
    assert stored <= highest <= stored + 1, f"{highest} notifications are there, {stored} were told"
    sent = {json.loads(body)["number"] for (body,) in store.rows("SELECT body FROM outbox WHERE sent_ts IS NOT NULL")}
    assert sent <= set(numbers), f"noted as sent, not received: {sent - set(numbers)}"
    assert len(set(numbers) - sent) <= 1, f"received, not noted: {set(numbers) - sent}"
    deliver(store, to((folder / "url").read_text()), lambda: time.time() + 3600.0)
    assert store.rows("SELECT count(*) FROM outbox WHERE sent_ts IS NULL") == [(0,)]
    return int(highest)


def take_log(store: Store, at: int) -> None:
    """Follow a log as well: its position and its rows are one transaction."""
    text = f"INFO 11-29 12:{at // 60 % 60:02}:{at % 60:02} [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: {at}.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n".encode()
    known = store.rows("SELECT bytes FROM source_file WHERE name = 'log x'")
    followed.put(store, "log x", "h:1", text, (known[0][0] if known else 0) + len(text), {})


def check(scene: str, folder: Path, told: list[str], before: int, got: list[Got]) -> int:
    """Open what is left and hold it against what was told; how many scrapes it holds."""
    stored = max((int(line.split()[1]) for line in told if line.startswith("stored")), default=before)
    with Store(folder / "a.duckdb") as store:
        if "open" in told and scene != "migrate":
            assert store.notice is not None, "the kill was not noticed"
        assert not store.rows(
            "SELECT 1 FROM every_sample AS m LEFT JOIN series AS s USING (series_id) WHERE s.series_id IS NULL LIMIT 1"
        )
        if scene == "notify":
            return received(store, folder, stored, got)
        if scene == "migrate":
            assert store.rows("SELECT count(*) FROM sample") == [(29228,)]
            return 0
        doubled = store.rows("SELECT series_id, ts FROM every_sample GROUP BY ALL HAVING count(*) > 1 LIMIT 1")
        assert not doubled, f"rows twice: {doubled}"
        step = 300.0 if scene == "rollup" else 1.0
        highest = store.rows("SELECT coalesce(max(value), -1) + 1 FROM every_sample")[0][0]
        assert highest >= stored, f"lost: {stored} were stored, {highest} are there"
        assert highest <= stored + BATCH, f"{highest} are there, {stored} were told"
        if highest:
            grown = store.rows("SELECT sum(generation_tokens), min(ts - dt_s), max(ts) FROM interval_row")[0]
            assert grown[0] == highest - 1, f"counters: {grown[0]}, expected {highest - 1}"
            assert (grown[2] - grown[1]) / step == highest - 1
        if scene == "ingest":
            rows, size = store.rows(
                "SELECT (SELECT count(*) FROM stat), coalesce((SELECT lines FROM source_file WHERE name = 'log x'), 0)"
            )[0]
            assert rows == size, f"log: {rows} rows, {size} lines counted"
    for archive in folder.glob("*.tar"):
        place = folder / f"restored-{archive.stem}"
        restore(archive, place / "b.duckdb")
        with Store(place / "b.duckdb") as store:
            assert store.rows("SELECT sum(generation_tokens) + 1 = (SELECT count(*) FROM scrape) FROM interval_row") == [(True,)]
        shutil.rmtree(place)
        archive.unlink()
    return int(highest)


def kill(scene: str, folder: Path, wait_s: float, before: int, receiver: Receiver, *, at_work: bool) -> int:
    """Run the child, kill it after so many seconds of work, check the store, which held so many scrapes; how many it holds."""
    if scene == "migrate":
        (folder / "a.duckdb").write_bytes(gzip.decompress(OLD.read_bytes()))
        Path(folder / "a.duckdb.wal").unlink(missing_ok=True)
    (folder / "url").write_text(receiver.url)
    command = [sys.executable, "-m", "tests.crash", "--child", scene, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "start\n"
        told = [child.stdout.readline().strip()] if at_work else []
        time.sleep(wait_s)
        os.kill(child.pid, signal.SIGKILL)
        told += child.stdout.read().splitlines()
    whole = [line for line in told if line.count(" ") == (0 if line == "open" else 1)]
    return check(scene, folder, whole, before, receiver.got())


def run(kills: int, seed: int, seconds: float = 2.0) -> Counter[str]:
    """Kill so many times, scene after scene, each scene's store going on after each kill."""
    chance, done, held = random.Random(seed), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="weaklink-crash-") as name, Receiver() as receiver:
        for at in range(kills):
            scene = SCENES[at % len(SCENES)]
            folder = Path(name) / scene
            folder.mkdir(exist_ok=True)
            at_work = scene != "migrate" and chance.random() < 0.8  # else while it opens the store
            wait_s = chance.uniform(0.0, 0.5 if scene == "migrate" else seconds)
            try:
                held[scene] = kill(scene, folder, wait_s, held[scene], receiver, at_work=at_work)
            except Exception as error:
                error.add_note(f"kill {at} (seed {seed}), scene {scene}, after {wait_s:.3f} s")
                raise
            done[scene] += 1
            if kills > 20:
                print(
                    f"{at + 1:4} {scene:<8} after {wait_s:.2f} s: {held[scene]} {'notifications' if scene == 'notify' else 'scrapes'}",
                    flush=True,
                )
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=2, metavar=("SCENE", "FOLDER"))
    given = parser.parse_args()
    if given.child:
        work(given.child[0], Path(given.child[1]))
    else:
        print(dict(run(given.kills, given.seed)), "killed; nothing that was stored is lost")


if __name__ == "__main__":
    main()
