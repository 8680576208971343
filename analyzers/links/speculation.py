"""Drafting and verifying tokens that are rejected.

What it is:
    With speculative decoding a step drafts tokens and verifies them together; rejected ones were work for nothing.

Why it costs latency:
    The step is longer by the draft and the verification. If few drafts are accepted, tokens come slower than without.

How it is computed:
    Accepted length = 1 + accepted / drafts; the step's own seconds are the inter-token latency, TPOT = ITL / accepted length.
    What the step would take without speculation needs a run without it: until then only the bound ITL - TPOT is given.

What to try:
    Fewer draft tokens at large batches: costs speed at small ones.
    Another draft method: costs memory.
"""

from typing import Final

from analyzers.books import Books
from analyzers.model import Link, Row, Stage

LINK: Final = Link("speculation", "Speculation")


def row(books: Books) -> Row:
    """Not used, or unknown with the accepted length as evidence."""
    t = books.engine.total
    if not t.get("draft_n"):
        off = books.engine.facts.get("speculative") is False
        return Row(used=False, fact="no draft model" if off else "no drafts counted", conditions=("speculative decoding is not configured" if off else "no draft was counted in this window",))
    length = 1 + t.get("accepted_tokens", 0.0) / t["draft_n"]
    per_draft = t.get("draft_tokens", 0.0) / t["draft_n"]
    accepted = t.get("accepted_tokens", 0.0) / max(t.get("draft_tokens", 0.0), 1.0)
    itl = t.get("itl_s", 0.0) / max(t.get("itl_n", 0.0), 1.0)
    saved = itl * (1 - 1 / length) * max(books.output_tokens - 1, 0.0)
    # a verified step costs more than a plain one by at most what the drafts add: the model's cost per computed token
    most = min(books.stages[Stage.DECODE], books.model.b * per_draft * max(books.output_tokens - 1, 0.0) / length if books.model.ok else books.stages[Stage.DECODE])
    return Row(
        known=False, bound={Stage.DECODE: most * (1 - accepted)}, fact=f"{length:.2f} tokens a step",
        conditions=("what a step takes without speculation is not measured here; run once without --speculative-config",),
        evidence=(f"{100 * accepted:.0f} % of {t['draft_tokens']:.0f} drafted tokens accepted, {length:.2f} tokens a step of {1000 * itl:.1f} ms",
                  f"at least {saved:.3f} s a request would be added without it, if a step then took as long"),
    )
