"""Requests by prompt length: who waits, and who makes others wait."""

from typing import Final

import numpy as np

from analyzers.model import Engine, Segment

LONG: Final = 6.0  # medians above which a prompt is called long
COLUMNS: Final = ("ttft", "queue", "prefill", "decode", "e2e")


def segments(engine: Engine) -> tuple[Segment, ...]:
    """Classes of prompt length with their mean seconds; empty below level `requests`."""
    req = engine.request
    if not len(req.get("prompt_tokens", ())):
        return ()
    prompt = req["prompt_tokens"]
    ok = np.isfinite(prompt) & np.isfinite(req["e2e_s"])
    if ok.sum() < 2:
        return ()
    median = float(np.median(prompt[ok]))
    edges = (0.0, median / 2, 2 * median, LONG * median, np.inf)
    names = ("up to half the median", "about the median", f"2 to {LONG:.0f} medians", f"above {LONG:.0f} medians")
    found = []
    for name, low, high in zip(names, edges[:-1], edges[1:], strict=True):
        chosen = ok & (prompt > low) & (prompt <= high)
        if chosen.any():
            seconds = {c: float(np.nanmean(req[f"{c}_s"][chosen])) for c in COLUMNS if np.isfinite(req[f"{c}_s"][chosen]).any()}
            found.append(Segment(name, int(chosen.sum()), float(prompt[chosen].mean()), seconds))
    return tuple(found)
