"""What a load generator says without a clock that the server shares: its totals, never a stage of the server.

`bench` events carry vLLM's own names (`vllm bench serve`): completed, duration (s), request_rate (offered, requests/s),
request_throughput (served), mean_ttft_ms, ... `facts["client"]` holds means over request records: requests, ttft_s, e2e_s.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from analyzers.model import Engine, Refusal

SERVED: Final = 0.9  # served over offered below which the queue grew
AGREES: Final = (0.5, 1.6)  # measured TTFT over the wait that overload alone predicts
LATENCIES: Final = (
    ("ttft", "TTFT", "s", 1000.0),
    ("tpot", "TPOT", "ms", 1.0),
    ("itl", "ITL", "ms", 1.0),
    ("e2el", "E2E", "s", 1000.0),
)


def runs(engine: Engine) -> list[Mapping[str, Any]]:
    """The benchmark runs that are known of this engine; one that was printed and saved counts once."""
    found = {
        (e.fields.get("completed"), round(_number(e.fields.get("duration") or 0.0), 1)): e.fields
        for e in engine.event
        if e.kind == "bench"
    }
    return list(found.values())


def says(engine: Engine) -> list[str]:
    """Benchmark runs and request records in words."""
    said = []
    for run in runs(engine):
        said.append(_run(run))
        backlog = overload(run)
        if backlog:
            said.append(backlog)
    client = engine.facts.get("client") or {}
    if client.get("requests"):
        parts = [f"TTFT {client['ttft_s']:.3g} s" if client.get("ttft_s") is not None else ""]
        parts += [f"E2E {client['e2e_s']:.3g} s" if client.get("e2e_s") is not None else ""]
        clock = "" if client.get("timed") else "; their times are on a clock of their own and not aligned to the server's"
        said.append(
            f"{client['requests']:.0f} requests as clients saw them: mean {', '.join(filter(None, parts)) or 'unknown'}{clock}"
        )
    return said


def refusals(engine: Engine) -> list[Refusal]:
    """What a client's totals cannot say."""
    if any(overload(run) for run in runs(engine)):
        rate = next(float(run["request_throughput"]) for run in runs(engine) if overload(run))
        return [
            Refusal(
                f"which stage caps the {rate:.2f} requests/s that were served (TTFT here measures overload)",
                "/metrics of the server during a run at a rate below that, or the server's log with its stats lines",
            )
        ]
    return []


def wait_s(run: Mapping[str, Any]) -> float:
    """Mean wait that a queue has which grows while requests are sent: N / 2 x (1 / served - 1 / offered); NaN where unknown."""
    n, served, offered = _number(run.get("completed")), _number(run.get("request_throughput")), _offered(run)
    return n / 2 * (1 / served - (1 / offered if math.isfinite(offered) else 0.0)) if served > 0 and offered > 0 else math.nan


def overload(run: Mapping[str, Any]) -> str | None:
    """The sentence on a run that was offered more than it served, so long as its TTFT is what that predicts."""
    served, offered, ttft = _number(run.get("request_throughput")), _offered(run), _number(run.get("mean_ttft_ms")) / 1000
    if not (served > 0 and offered > 0 and served < SERVED * offered):
        return None
    expected = wait_s(run)
    if not AGREES[0] <= ttft / expected <= AGREES[1] or ttft < 1:
        return None
    if not math.isfinite(offered):
        return (
            f"all requests were sent at once and {served:.2f} a second were served: that alone predicts a mean wait of about "
            f"{expected:.0f} s, in line with the mean TTFT of {ttft:.1f} s; TTFT here measures the backlog, not the server"
        )
    sent = _number(run.get("completed")) / offered
    return (
        f"overload: {offered:.1f} requests/s were offered and {served:.2f} served, so the queue grew for the whole {sent:.0f} s of sending; "
        f"that alone predicts a mean wait of about {expected:.0f} s, in line with the mean TTFT of {ttft:.1f} s; TTFT here measures overload"
    )


def _run(run: Mapping[str, Any]) -> str:
    n, offered, served = run.get("completed"), _offered(run), _number(run.get("request_throughput"))
    said = f"benchmark: {n if n is not None else 'unknown'} requests" + (
        f" ({run['failed']} failed)" if run.get("failed") else ""
    )
    if math.isfinite(_number(run.get("duration"))):
        said += f" in {_number(run['duration']):.0f} s"
    if not math.isnan(offered):
        said += ", all sent at once" if math.isinf(offered) else f", {offered:.1f} requests/s offered"
    if math.isfinite(served):
        said += f", {served:.2f} served"
    for key, name, unit, scale in LATENCIES:
        value = _number(run.get(f"mean_{key}_ms"))
        if math.isfinite(value):
            value /= scale
            said += f", mean {name} {value:.1f} {unit}" if value >= 10 else f", mean {name} {value:.3g} {unit}"
    return said


def _offered(run: Mapping[str, Any]) -> float:
    rate = run.get("request_rate")
    return math.inf if rate == "inf" else _number(rate)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
