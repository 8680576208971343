"""Drafting and verifying tokens that are rejected.

What it is:
    With speculative decoding a step drafts tokens and verifies them together; rejected ones were work for nothing.

Why it costs latency:
    The step is longer by the draft and the verification. If few drafts are accepted, tokens come slower than without.

How it is computed:
    Accepted length = 1 + accepted / drafts; TPOT = ITL / accepted length. Rejected tokens cost what the step model says a
    computed token costs, for every sequence of the step. What the step would take without drafting needs a run without it.

What to try:
    Fewer draft tokens at large batches: costs speed at small ones.
    Another draft method: costs memory.
"""

from dataclasses import replace
from typing import Final

from analyzers.books import Books
from analyzers.model import Engine, Link, Row, Sign, Stage

LINK: Final = Link("speculation", "Speculation")


def row(books: Books) -> Row:
    """Not used, or unknown with the accepted length as evidence."""
    t = books.engine.total
    if not t.get("draft_n") or "draft_tokens" not in t:
        off = books.engine.facts.get("speculative") is False
        return Row(
            used=False,
            fact="no draft model" if off else "no drafts counted",
            conditions=("speculative decoding is not configured" if off else "no draft was counted in this window",),
        )
    length = 1 + t.get("accepted_tokens", 0.0) / t["draft_n"]
    accepted = t.get("accepted_tokens", 0.0) / max(t.get("draft_tokens", 0.0), 1.0)
    itl = t.get("itl_s", 0.0) / max(t.get("itl_n", 0.0), 1.0)
    saved = itl * (1 - 1 / length) * max(books.output_tokens - 1, 0.0)
    said = (
        f"{100 * accepted:.0f} % of {t['draft_tokens']:.0f} drafted tokens accepted, {length:.2f} tokens a step of {1000 * itl:.1f} ms",
        f"at least {saved:.3f} s a request would be added without it, if a step then took as long",
    )
    condition = "what a step takes without speculation is not measured here; run once without --speculative-config"
    if not books.model.ok:
        return Row(
            known=False,
            bound={Stage.DECODE: books.stages[Stage.DECODE] * (1 - accepted)},
            fact=f"{length:.2f} tokens a step",
            conditions=(condition,),
            evidence=said,
        )
    return Row(
        cells={Stage.DECODE: books.decode.get("rejected", 0.0)},
        pressure=1 - accepted,
        fact=f"{length:.2f} tokens a step",
        conditions=(condition, "a rejected token costs what a prompt token costs"),
        evidence=said,
    )


def adjust(books: Books) -> Books:
    """Move the cost of rejected tokens out of the cells of the other links: it lies inside every step."""
    t, w = books.engine.total, books.windows
    if not t.get("draft_n") or "draft_tokens" not in t or not books.model.ok or w is None or not w.busy.any():
        return books
    rejected = max(0.0, t.get("draft_tokens", 0.0) - t.get("accepted_tokens", 0.0)) / t["draft_n"]
    together = float(w.decode[w.busy].sum() / max(w.n[w.busy].sum(), 1.0))
    step_s = float(w.dt[w.busy].sum() / max(w.n[w.busy].sum(), 1.0))
    share = min(0.8, books.model.b * rejected * together / max(step_s, 1e-9))
    decode = dict(books.decode)
    decode["rejected"] = sum(decode[name] for name in ("base", "batch", "prompts")) * share
    for name in ("base", "batch", "prompts"):
        decode[name] *= 1 - share
    return replace(books, decode=decode)


def sign(engine: Engine) -> Sign | None:
    """Drafts that the log counts: evidence only, never a limit."""
    lines = [e.fields for e in engine.event if e.kind == "spec_decode" and e.fields.get("acceptance_length")]
    ratios = [100 * float(f["draft_acceptance_ratio"]) for f in lines if f.get("draft_acceptance_ratio") is not None]
    if not lines:
        return None
    lengths = [float(f["acceptance_length"]) for f in lines]
    said = (
        f"{min(lengths):.2f} to {max(lengths):.2f} tokens a step and sequence"
        if len(lines) > 1
        else f"{lengths[0]:.2f} tokens a step"
    )
    if ratios:
        said += (
            f", {min(ratios):.0f} to {max(ratios):.0f} % of the drafts accepted"
            if len(ratios) > 1
            else f", {ratios[0]:.0f} % of the drafts accepted"
        )
    return Sign(0.1, said)
