"""A larger cache for media, and a budget that fits them.

Images and audio are decoded and preprocessed in the API server, encoded on the GPU within the token budget, and kept in a cache;
what is sent again is then not processed again.
"""

import math
from typing import Final

import numpy as np

from analyzers import versions
from analyzers.case import Case, amount, within
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis
from analyzers.steps import number

NAME: Final = "multimodal"
SINCE: Final = versions.first_of("mm-processor-cache-gb")
RELIEVES: Final = ("frontend", "prefill_backlog")
TAKES: Final = ()
EFFORT: Final = 0
TOUCHES: Final = ("mm_processor_cache_gb", "limit_mm_per_prompt", "max_num_batched_tokens")
FULL: Final = 0.9  # media hit ratio above which nothing is left to gain
DEFAULT_GB: Final = 4.0


def propose(case: Case) -> Hypothesis | None:
    """Where media were seen and many of them are not found in their cache."""
    seen = [e.stat["mm_hit_ratio"] for e in case.window.engines if len(e.stat.get("mm_hit_ratio", ()))]
    ratios = np.concatenate(seen) if seen else np.zeros(0)
    ratios = ratios[np.isfinite(ratios)]
    if not len(ratios) or float(ratios.mean()) >= FULL:
        return None
    hit, servers = float(ratios.mean()), number(case.fact("api_servers"), 1.0)
    held = {
        name: (case.seconds("frontend", name) + case.seconds("prefill_backlog", name)) * (1 - hit) for name in ("ttft", "e2e")
    }
    effects = within(case, held)
    wanted = 2 * number(case.args.get("mm_processor_cache_gb"), DEFAULT_GB)
    has = versions.has(versions.version_of(case.engine), "mm-processor-cache-gb")
    return Hypothesis(
        name=NAME, change=f"a media cache of {wanted:.0f} GB", flags=(f"--mm-processor-cache-gb {wanted:.0f}",) if has else (),
        claim=f"{100 * hit:.0f} % of media are found in the cache; the rest is decoded, preprocessed and encoded: at most {amount(held['ttft'])} of TTFT",
        effect=effects, predicted_by="nothing",
        costs=(f"{wanted:.0f} GB of host memory per API server process" + (f" ({servers:.0f} of them)" if servers > 1 and math.isfinite(servers) else ""),),
        confused_with="a prefill backlog: the encoder's steps take the token budget of prompts, and the wait looks the same",
        conditions=("only media that come again can hit: how many do is not in the metrics",
                    "up to 0.16 media are decoded before the arrival stamp: those seconds only clients see",
                    "with several API servers the cache between processes is off",
                    "the encoder's budget is max_num_batched_tokens: an image that needs more tokens waits for steps of its own", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "TTFT of requests with media, media cache hit rate of the stats line, process CPU"),
    )  # fmt: skip
