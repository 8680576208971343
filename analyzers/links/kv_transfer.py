"""Loads of KV blocks from offload tiers and remote engines.

What it is:
    Queue seconds while a request is deferred because its KV blocks are still on the way (disaggregated prefill, offload tier).

Why it costs latency:
    The copy takes time, and its start, its end and the admission each wait for a step's end.

How it is computed:
    Measured queue seconds x waiting time with reason `deferred` / all waiting time. The wire's own seconds (transfer, post,
    load histograms) are evidence inside, not the cost: a 5 ms copy costs 15 ms of queue.

What to try:
    Another layout, bandwidth or connector: depends on the hardware.
    A load threshold for the tier, recomputing short prefixes: costs prefill.
"""

from typing import Final

import numpy as np

from analyzers.books import Books
from analyzers.model import Engine, Link, Row, Sign, Stage

LINK: Final = Link("kv_transfer", "KV transfer")
FEW: Final = 30  # transfers below which nothing is said of their distribution


def row(books: Books) -> Row:
    """Deferred queue seconds; unknown where the reason is not exported and a connector may be there."""
    t, facts = books.engine.total, books.engine.facts
    wire = sum(t.get(name, 0.0) for name in ("nixl_transfer_s", "offload_load_s"))
    uses = wire > 0 or t.get("external_hit_tokens", 0.0) > 0
    exported = len(books.engine.interval.get("deferred", ())) > 0 and bool(np.isfinite(books.engine.interval["deferred"]).any())
    if not uses and facts.get("connector") is False:
        return Row(used=False, fact="no connector", conditions=("no KV connector or offload tier is configured",))
    if not uses and not (facts.get("connector") and not exported):
        return Row(
            cells={Stage.QUEUE: books.queue["deferred"]},
            used=bool(facts.get("connector")),
            fact="no transfers seen",
            conditions=("no transfer or load was counted in this window",),
        )
    if not exported:
        return Row(
            known=False,
            bound={Stage.QUEUE: books.stages[Stage.QUEUE]},
            fact="reason not exported",
            conditions=("num_requests_waiting_by_reason is not exported (vLLM 0.20 has it)",),
        )
    said = []
    if t.get("nixl_transfer_n") and "nixl_transfer_s" in t:
        size = t.get("nixl_bytes", 0.0) / t["nixl_transfer_n"]
        said.append(
            f"{t['nixl_transfer_n']:.0f} transfers, {1000 * t['nixl_transfer_s'] / t['nixl_transfer_n']:.1f} ms each on the wire"
            f" (+ {1000 * t.get('nixl_post_s', 0.0) / t['nixl_transfer_n']:.1f} ms post), {size / 1e6:.0f} MB each"
        )
    if t.get("offload_load_s"):
        said.append(
            f"{t['offload_load_s']:.2f} s of loads from the offload tier, {t.get('offload_load_bytes', 0.0) / 1e9:.1f} GB"
        )
    if t.get("external_hit_tokens"):
        said.append(f"{t['external_hit_tokens']:.0f} prompt tokens came from another tier or engine")
    return Row(
        cells={Stage.QUEUE: books.queue["deferred"]},
        fact=f"{1000 * books.queue['deferred']:.0f} ms deferred",
        conditions=("what loads cost running decodes is unknown",),
        evidence=tuple(said),
    )


def sign(engine: Engine) -> Sign | None:
    """NIXL lines without request seconds: what a transfer took, never a limit."""
    lines = [e.fields for e in engine.event if e.kind == "kv_transfer" and e.fields.get("Num successful transfers")]
    n = sum(float(f["Num successful transfers"]) for f in lines)
    if not n:
        return None

    def mean(name: str) -> float:
        return sum(float(f.get(name) or 0.0) * float(f["Num successful transfers"]) for f in lines) / n

    took, post, size = (mean(name) for name in ("Avg xfer time (ms)", "Avg post time (ms)", "Avg MB per transfer"))
    share = (
        f", {100 * post / took:.0f} % of it posting descriptors ({post:.1f} ms, {mean('Avg number of descriptors'):.0f} each)"
        if took > 0
        else ""
    )
    few = "a single sample is" if n == 1 else "a few samples are" if n < FEW else "these lines alone are"
    return Sign(
        0.1,
        f"{n:.0f} transfer{'' if n == 1 else 's'} of {size:.0f} MB took {took:.1f} ms{'' if n == 1 else ' each'}{share}; "
        f"{few} too little to name a limit: it matters only against TTFT, which is not in these files",
        "vllm:time_to_first_token_seconds and vllm:request_queue_time_seconds of the same server",
    )
