"""How busy the API server process is: evidence shared by the links `frontend` and `output`, which are one cause."""

from typing import Final

import numpy as np

from analyzers import steps
from analyzers.model import Engine

FAILING: Final = 0.1  # share of scrapes after the first success that fail


def servers(engine: Engine) -> float:
    """API server processes of the instance."""
    return max(1.0, steps.number(engine.facts.get("api_servers"), 1.0))


def cpu_cores(engine: Engine) -> float | None:
    """CPU of one API server process in cores over its busiest quarter; None where the series is missing."""
    if servers(engine) > 1 or not len(engine.interval.get("ts", ())):
        return None
    cpu, dt = engine.interval["process_cpu_s"], engine.interval["dt_s"]
    ok = np.isfinite(cpu) & (dt > 0)
    if not ok.any() or not bool(np.all(engine.interval["timed"].astype(bool))):
        return None
    rate = np.sort(cpu[ok] / dt[ok])
    return float(rate[-max(1, len(rate) // 4) :].mean())


def evidence(engine: Engine) -> list[str]:
    """CPU, scrape seconds and failures: each scrape waits for the same event loop as a request."""
    said = []
    cores = cpu_cores(engine)
    if cores is not None:
        said.append(f"API server process at {cores:.2f} cores in its busiest quarter (one event loop: 1.0 is the most)")
    ok = engine.scrape.get("ok", np.zeros(0)).astype(bool)
    seen = np.flatnonzero(ok)
    if len(seen):
        took, inside = engine.scrape["duration_s"][seen[0] : seen[-1] + 1], ok[seen[0] : seen[-1] + 1]
        if np.isfinite(took).any():
            said.append(
                f"a scrape took {1000 * float(np.nanmean(took)):.0f} ms on average, {int((~inside).sum())} failed between the first and the last success"
            )
    said.append(client_saw(engine) or "clients may see more: what happens before the arrival stamp is in no metric of vLLM")
    t = engine.total
    if t.get("http_n") and t.get("e2e_n"):
        beyond = t.get("http_s", 0.0) / t["http_n"] - t.get("e2e_s", 0.0) / t["e2e_n"]
        said.append(f"HTTP layer beyond the measured E2E: {1000 * beyond:.0f} ms a request (in no stage)")
    return said


def client_saw(engine: Engine) -> str | None:
    """Seconds that only the clients saw, from their own timings; None where there are none."""
    req = engine.request
    if not len(req.get("client_e2e_s", ())):
        return None
    both = (
        np.isfinite(req["client_e2e_s"])
        & np.isfinite(req["e2e_s"])
        & np.isfinite(req["client_ttft_s"])
        & np.isfinite(req["ttft_s"])
    )
    if not both.any():
        return None
    first = float((req["client_ttft_s"] - req["ttft_s"])[both].mean())
    whole = float((req["client_e2e_s"] - req["e2e_s"])[both].mean())
    return f"clients saw {1000 * first:.0f} ms more TTFT and {1000 * whole:.0f} ms more E2E than the server measured (mean of {int(both.sum())} requests)"


def saturated(engine: Engine) -> bool:
    """Process CPU near one core and scrapes that slow down or fail."""
    cores = cpu_cores(engine)
    took = engine.scrape.get("duration_s", np.zeros(0))
    slow = len(took) > 0 and (float(np.nanpercentile(took, 90)) > 0.5 if np.isfinite(took).any() else False)
    ok = engine.scrape.get("ok", np.zeros(0)).astype(bool)
    seen = np.flatnonzero(ok)
    failing = len(seen) > 0 and float((~ok[seen[0] :]).mean()) > FAILING
    return cores is not None and cores > 0.9 and (slow or failing)
