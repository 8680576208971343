"""API server before the engine.

What it is:
    The time between the arrival stamp in the API server and the engine's queue: admission, rendering, tokenizing, message
    passing, and the event loop's lag before the first token is handled.

Why it costs latency:
    One Python process serves every connection. When it has no CPU left, requests wait for it although the engine is idle.

How it is computed:
    TTFT - queue - prefill - the wait in the engine's input queue, less a nominal 12 ms. Exact in seconds; what happens before
    the arrival stamp is in no metric of vLLM.

What to try:
    --api-server-count N: more API server processes; costs memory per process, and the periodic stats lines.
    Fewer logprobs, shorter prompts to render, no per-token streaming (--stream-interval): costs features.
"""

from typing import Final

from analyzers import api_server
from analyzers.books import Books
from analyzers.model import Link, Row, Stage

LINK: Final = Link("frontend", "API server", cause="API server")


def row(books: Books) -> Row:
    """FRONTEND beyond the nominal front end and the input dwell."""
    seconds = books.stages[Stage.FRONTEND] - books.dwell_s - books.frontend_nominal_s
    cores = api_server.cpu_cores(books.engine)
    return Row(
        cells={Stage.FRONTEND: max(0.0, seconds)},
        pressure=None if cores is None else min(1.0, cores),
        fact="process CPU unknown" if cores is None else f"{cores:.2f} of 1 core",
        conditions=() if books.requests >= 100 else (f"only {books.requests} finished requests",),
        evidence=tuple(api_server.evidence(books.engine)),
    )
