"""Prompt tokens computed again although the same prefix had been computed.

What it is:
    Misses that more sharing would avoid at the given capacity: a cache salt, a cold engine, a restart, another replica's
    cache, prefixes shorter than a block, prefix caching switched off.

Why it costs latency:
    The tokens are computed again: the request's own prefill is longer, and its prompt tokens hold up all others.

How it is computed:
    From block identities (KV events): blocks first stored here that another engine had stored. The avoidable share of
    computed tokens owns the same share of every prompt cost. Counters alone cannot tell unseen sharing from a backlog, nor
    misses from eviction: then it is refused.

What to try:
    Routing by prefix (session affinity): costs balance, hot spots.
    A wider cache_salt scope: costs isolation between tenants.
    --enable-prefix-caching where it is off: costs hashing, nothing where prompts share nothing.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from analyzers.books import Books, prompt_seconds
from analyzers.model import Engine, Link, Row, Sign, Stage
from analyzers.twin import Setup

LINK: Final = Link("prefix_cache_miss", "Prefix miss")
TURNS: Final = ("/v1/messages", "/v1/responses")  # conversations: each turn comes with the whole conversation before it
NO_REUSE: Final = 0.01  # hit rate up to which next to nothing is used again


def row(books: Books) -> Row:
    """The missed share of what prompts cost; unknown where sharing cannot be seen."""
    hits, m = books.hits, books.hits.missed
    if books.engine.facts.get("prefix_caching") is False:
        return Row(
            known=False,
            used=False,
            fact="caching is off",
            conditions=(
                "prefix caching is off: what it would save needs a run with it on (--enable-prefix-caching, and KV events)",
            ),
        )
    said = (
        (f"hit rate {hits.now:.2f}" + (f", {hits.shared:.2f} with sharing ({hits.how})" if hits.missed_known and m > 0 else ""),)
        if hits.now == hits.now
        else ()
    )
    if not hits.missed_known:
        return Row(
            known=False,
            bound=prompt_seconds(books),
            fact="needs KV events",
            conditions=(hits.refusal.what if hits.refusal else hits.how,),
            evidence=said,
        )
    return Row(
        cells={
            Stage.FRONTEND: books.dwell_s * m,
            Stage.QUEUE: (books.queue["budget"] + books.queue["step"]) * m,
            Stage.PREFILL: books.prefill["others"] * m + books.prefill["extra"] * _of_extra(books),
            Stage.DECODE: books.decode["prompts"] * m,
        },
        pressure=m,
        fact=f"hit rate {hits.now:.2f}",
        conditions=(hits.how, *(("cache salts are not visible below KV events",) if not books.engine.kv else ())),
        evidence=said,
    )


def _of_extra(books: Books) -> float:
    total = books.hits.missed + books.hits.evicted
    return books.hits.missed / total if total > 0 else 0.0


def sign(engine: Engine) -> Sign | None:
    """Turns of conversations, each of which repeats the one before, with next to no hits."""
    calls = sum(
        int(e.fields.get("count") or 0)
        for e in engine.event
        if e.kind == "access" and str(e.fields.get("path", "")).endswith(TURNS)
    )
    hits = engine.stat.get("prefix_hit_ratio", np.zeros(0))
    hits = hits[np.isfinite(hits)]
    if not calls or not len(hits) or hits[-1] > NO_REUSE or engine.facts.get("prefix_caching") is False:
        return None
    low = hits[np.flatnonzero(hits > NO_REUSE)[-1] + 1 :] if (hits > NO_REUSE).any() else hits
    return Sign(
        0.6,
        f"next to no prefix is used again: hit rate {100 * low.min():.1f} to {100 * low.max():.1f} % in the last {len(low)} stats lines "
        "(a moving figure over the last 1000 requests), with turns of conversations (/v1/messages) that each repeat the ones before; "
        "either something early in the prompt changes with each request (a header, a date), or the cache block is larger than the "
        "shared prefix (hybrid models)",
        "two prompts of one conversation compared token by token, and the block size from the start of the log",
    )


def fix(setup: Setup) -> Setup:
    """Sharing without limits at this capacity."""
    return replace(setup, hit=max(setup.hit, setup.hit_shared))
