"""A recording served again: each server on its own port, moved to now, gaps as gaps."""

import gzip
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from collectors.sources.serving import INCIDENTS, ROOT, TEXT, only_metrics
from ports import free_port

from app.collectors import replay
from app.collectors.sources.bundle import BundleError

START = 1795953600.0


def bundle(folder: Path, *lines: dict) -> Path:
    (folder / "metrics.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return folder


def said(t: float, number: int, host: str = "a:1") -> dict:
    text = f'vllm:x{{engine="0"}} {number}\nprocess_start_time_seconds {START - 100}\nvllm:x_created{{e="0"}} {START - 90}\n'
    return {"t": START + t, "url": f"http://{host}/metrics", "dur": 0.0, "text": text}


def values(text: str) -> list[float]:
    return [float(line.split()[1]) for line in text.splitlines()]


def test_recorded_time_passes_and_gaps_are_gaps(tmp_path: Path):
    down = {"t": START + 0.6, "url": "http://a:1/metrics", "error": "down"}
    path = bundle(tmp_path, said(0, 0), said(0.3, 1), down, said(0.9, 2), said(1.2, 3), {**down, "t": START + 1.5})
    with httpx.Client() as http, replay.recording(path) as held, replay.serve(held) as playing:
        (url,) = playing.urls.values()
        began, seen = time.time(), []
        while time.time() < began + 1.9:
            answer = http.get(url)
            value = values(answer.text)[0] if answer.status_code == 200 else None
            if not seen or seen[-1] != value:
                seen.append(value)
            time.sleep(0.01)
        starts = values(answer.text)[1:]
        assert http.get(url.replace("/metrics", "/other")).status_code == 404
        assert playing.ended()
    assert seen == [0, 1, None, 2, 3]  # at the end it stands still where it last answered
    assert starts == pytest.approx([began - 100, began - 90], abs=0.5)


def test_at_another_speed_samples_carry_their_own_time(tmp_path: Path):
    path = bundle(tmp_path, *(said(at, at) for at in range(21)))
    with httpx.Client() as http, replay.recording(path) as held, replay.serve(held, speed=20) as playing:
        (url,) = playing.urls.values()
        stamps: dict[float, float] = {}
        going = True
        while going:  # and once more when it has ended: it stands still at its last sample
            going = not playing.ended()
            end = time.time()
            for line in http.get(url).text.splitlines():
                name, value, stamp = line.split()
                if name.startswith("vllm:x{"):
                    stamps[float(value)] = int(stamp) / 1000
            time.sleep(0.005)
    numbers = sorted(stamps)
    assert len(numbers) > 5
    assert all(stamps[b] - stamps[a] == pytest.approx(b - a, abs=0.002) for a, b in itertools.pairwise(numbers))
    assert numbers[-1] == 20
    assert end - 1.5 < stamps[20] <= end + 0.1


def test_each_server_has_its_port(tmp_path: Path):
    port = free_port()
    path = bundle(tmp_path, said(0, 7, "a:1"), said(0, 8, "b:2"))
    with replay.recording(path) as held, replay.serve(held, port=port) as playing:
        assert playing.urls == {"a:1": f"http://127.0.0.1:{port}/metrics", "b:2": f"http://127.0.0.1:{port + 1}/metrics"}
        assert [values(httpx.get(url).text)[0] for url in playing.urls.values()] == [7, 8]
        with pytest.raises(OSError, match="in use"), replay.serve(held, port=port):
            pass


def test_a_whole_text_comes_back_as_it_was(tmp_path: Path):
    path = bundle(tmp_path, {"t": START, "url": "http://a:1/metrics", "text": TEXT})
    with replay.recording(path) as held, replay.serve(held) as playing:
        text = httpx.get(playing.urls["a:1"]).text

    def plain(lines: str) -> list[str]:
        return [line for line in lines.splitlines() if "process_start_time" not in line and "_created" not in line]

    assert plain(text) == plain(TEXT)


def test_without_scrapes_there_is_nothing_to_replay(tmp_path: Path):
    with pytest.raises(BundleError, match="no scrapes with a time"), replay.recording(bundle(tmp_path)):
        pass
    with pytest.raises(BundleError, match="no such file"), replay.recording(tmp_path / "none"):
        pass


def test_the_verb(tmp_path: Path):
    path = only_metrics(INCIDENTS / "kv_transfer", tmp_path)
    command = [sys.executable, "-m", "app", "replay", str(path), "--port", "0", "--for", "1", "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["urls"]) == 2
    done = subprocess.run([*command[:4], str(tmp_path / "none")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no such file" in done.stderr
