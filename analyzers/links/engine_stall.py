"""Steps far longer than their work.

What it is:
    Late kernel compilation, expert rearrangement, garbage collection, a blocked worker: all requests of the engine stand still.

Why it costs latency:
    One stall of a second is a second for every running request, and for those that arrive meanwhile.

How it is computed:
    With iteration lines that have milliseconds: gaps in which decoding went on, 80 ms and three times longer than the step.
    Else token gaps above twice the largest step that the model explains, less preemptions; stalls shorter than the
    histogram's buckets are not seen then. Who decodes, is prefilled or stands in the line stands still; who arrives in a stall
    waits for half of it.

What to try:
    By cause: warm up the shapes that compile late (log: "during inference"), EPLB's interval, host memory and CPU pinning.
"""

from dataclasses import replace
from typing import Final

from analyzers.books import Books, logged_stalls
from analyzers.model import Link, Row, Stage
from analyzers.twin import Setup

LINK: Final = Link("engine_stall", "Stalls")


def row(books: Books) -> Row:
    """Decode seconds in gaps that no modelled step explains."""
    if not books.model.ok:
        return Row(  # without step costs all of decode could be stalls
            known=False,
            bound={Stage.DECODE: books.decode["unread"]},
            fact="no step model",
            conditions=(books.model.refused or "no step model",),
        )
    count, length = books.stalls
    said = [f"{count:.0f} stalls of about {length:.2f} s"] if count else []
    lines = [e for e in books.engine.event if e.kind in {"jit", "rearrange"}]
    if lines:
        said.append(f"{len(lines)} log lines of late compilation or rearrangement, first at {lines[0].file}:{lines[0].line}")
    return Row(
        cells={
            Stage.FRONTEND: books.stalled_s,
            Stage.QUEUE: books.queue["stall"],
            Stage.PREFILL: books.prefill["stall"],
            Stage.DECODE: books.decode["stall"],
        },
        fact=f"{count:.0f} seen" if count else "none seen",
        conditions=(
            ("from millisecond stamps of iteration lines",)
            if logged_stalls(books.engine, books.model) is not None
            else (
                "from the inter-token histogram: stalls below its buckets are not seen (iteration lines with millisecond stamps would show them)",
            )
        ),
        evidence=tuple(said),
    )


def fix(setup: Setup) -> Setup:
    """No stalls."""
    return replace(setup, stalls=())
