"""Decode steps longer because many sequences share them.

What it is:
    The part of each decode step that other sequences in the batch add. Load, not a fault: batching is why serving is cheap.

Why it costs latency:
    Each sequence's KV cache has to be read in every step; the step is as long as all of them together.

How it is computed:
    The step model's cost per decoding sequence times the other sequences in the step, summed over measured steps and scaled
    to the measured decode seconds.

What to try:
    More replicas: costs GPUs.
    Quantised weights or KV cache: costs accuracy, needs kernel support.
    --max-num-seqs down: costs queue.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from analyzers.books import Books
from analyzers.model import Link, Row, Stage
from analyzers.twin import Setup

LINK: Final = Link("decode_batch", "Decode batch", load=True)


def row(books: Books) -> Row:
    """Decode seconds that batching adds; unknown without a step model."""
    running = books.engine.interval.get("running", np.zeros(0))
    mean = float(np.nanmean(running)) if len(running) and np.isfinite(running).any() else math.nan
    if not books.model.ok:
        return Row(known=False, fact="no step model", conditions=(books.model.refused or "no step model",))
    m = books.model
    tpot = books.stages[Stage.DECODE] / max(books.output_tokens - 1, 1e-9)
    w = books.windows
    together = float((w.decode * w.busy).sum() / max((w.n * w.busy).sum(), 1e-9)) if w is not None else math.nan
    return Row(
        cells={Stage.DECODE: books.decode["batch"]},
        fault={},
        fact=f"{together:.0f} at once" if math.isfinite(together) else "",
        pressure=min(1.0, books.decode["batch"] / books.stages[Stage.DECODE]) if books.stages[Stage.DECODE] > 0 else None,
        conditions=(
            f"step model from {m.windows} {m.source}, residual {100 * m.residual_ratio:.0f} %",
            *((f"the split from prompts is assumed: {m.unsplit}",) if m.unsplit else ()),
        ),
        evidence=(
            f"TPOT {1000 * tpot:.2f} ms with {together:.1f} sequences in a step: {1000 * m.a:.2f} ms + {1e6 * m.c:.0f} µs a sequence",
            *((f"{mean:.1f} running on average",) if math.isfinite(mean) else ()),
        ),
    )


def fix(setup: Setup) -> Setup:
    """A step as for one sequence."""
    return replace(setup, alone=True)
