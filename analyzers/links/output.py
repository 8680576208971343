"""After the engine.

What it is:
    Detokenizing, parsing, logprobs and streaming in the API server, after the engine gave the tokens.

Why it costs latency:
    It runs on the same event loop as the front end. Large responses make tokens wait there although they are computed.

How it is computed:
    E2E - TTFT - decode, less a nominal 2 ms. Exact in seconds; a value below zero is a residue of the subtraction and stays
    unexplained.

What to try:
    Fewer logprobs, smaller responses, --stream-interval N: costs features or smoothness.
    --api-server-count N: costs memory per process, and the periodic stats lines.
"""

from typing import Final

from analyzers import api_server
from analyzers.books import NOMINAL_OUTPUT_S, Books
from analyzers.model import Link, Row, Stage

LINK: Final = Link("output", "Output", cause="API server")


def row(books: Books) -> Row:
    """OUTPUT beyond the nominal delivery."""
    seconds = books.stages[Stage.OUTPUT] - NOMINAL_OUTPUT_S
    tokens = books.output_tokens
    per = 1e6 * books.stages[Stage.OUTPUT] / tokens if tokens > 0 else 0.0
    fact = f"{per:.0f} µs a token" if round(per) > 0 else "below what the clocks resolve"
    fact = fact if tokens > 0 else "output tokens not counted"
    cores = api_server.cpu_cores(books.engine)
    return Row(
        cells={Stage.OUTPUT: max(0.0, seconds)},
        pressure=None if cores is None else min(1.0, cores),
        fact=fact,
        evidence=tuple(api_server.evidence(books.engine)),
    )
