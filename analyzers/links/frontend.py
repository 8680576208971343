"""API server before the engine.

What it is:
    The time between the arrival stamp in the API server and the engine's queue: admission, rendering, tokenizing, message
    passing, and the event loop's lag before the first token is handled.

Why it costs latency:
    One Python process serves every connection. When it has no CPU left, requests wait for it although the engine is idle.

How it is computed:
    TTFT - queue - prefill - the wait in the engine's input queue, less a nominal 12 ms. Exact in seconds; what happens before
    the arrival stamp is in no metric of vLLM. Without step costs that wait is not known: as much as prefill may be it.

What to try:
    --api-server-count N: more API server processes; costs memory per process, and the periodic stats lines.
    Fewer logprobs, shorter prompts to render, no per-token streaming (--stream-interval): costs features.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from analyzers import api_server
from analyzers.books import Books
from analyzers.model import Engine, Link, Row, Sign, Stage
from analyzers.twin import Setup

LINK: Final = Link("frontend", "API server", cause="API server")
TELLING_S: Final = 0.001  # less than this of possible waits is not worth a sentence


def row(books: Books) -> Row:
    """FRONTEND beyond the nominal front end and the waits for the step in flight."""
    seconds = max(0.0, books.stages[Stage.FRONTEND] - books.dwell_s - books.stalled_s - books.frontend_nominal_s)
    # a step that computes prompts lasts about as long as prefill; who arrives in one waits for it here
    untold = 0.0 if books.model.ok else min(seconds, sum(books.prefill.values()))
    cores = api_server.cpu_cores(books.engine)
    return Row(
        cells={Stage.FRONTEND: seconds},
        fault={Stage.FRONTEND: seconds - untold},
        bound={Stage.FRONTEND: untold} if untold > 0 else None,
        pressure=None if cores is None else min(1.0, cores),
        fact="process CPU unknown" if cores is None else f"{cores:.2f} of 1 core",
        conditions=tuple(_conditions(books, untold)),
        evidence=tuple(api_server.evidence(books.engine)),
    )


def _conditions(books: Books, untold: float) -> Iterator[str]:
    if untold >= TELLING_S:
        yield f"{1000 * untold:.0f} ms of the front end may be waits for the step in flight, which nothing tells apart without step costs"
    if books.requests < 100:
        yield f"only {books.requests} finished requests"


def sign(engine: Engine) -> Sign | None:
    """Clients wait far longer for a first token than the engine accounts for."""
    client, t = engine.facts.get("client") or {}, engine.total
    waited = client.get("ttft_s")
    if waited is None or not t.get("queue_n") or not t.get("prefill_n"):
        return None
    queue, prefill = t["queue_s"] / t["queue_n"], t["prefill_s"] / t["prefill_n"]
    server = t["ttft_s"] / t["ttft_n"] if t.get("ttft_n") and "ttft_s" in t else queue + prefill
    if waited - server < max(0.5 * waited, 0.1):
        return None
    said = (
        f"clients wait {waited:.1f} s for a first token, the engine accounts for {server:.2f} s (queue {queue:.3f}, prefill {prefill:.2f}): "
        f"{waited - server:.1f} s pass before its arrival stamp, where requests are rendered (images, templates) and tokenized in the API server"
    )
    sent = client.get("concurrency")
    running = engine.interval.get("running")
    if sent and running is not None and len(running) and math.isfinite(float(running[-1])):
        held = sorted({float(engine.interval["running_before"][0]), float(running[-1])} - {math.nan})
        known = " to ".join(f"{value:.0f}" for value in held)
        said += f"; {sent:.0f} requests are in flight, of which the scheduler knows {known}"
    return Sign(
        0.95,
        said + "; the TTFT that the server exports is not what clients see",
        "the render endpoint's time or the CPU of each API server process; the network between client and server counts as well",
    )


def fix(setup: Setup) -> Setup:
    """Requests reach the engine without delay."""
    return replace(setup, instant=True)
