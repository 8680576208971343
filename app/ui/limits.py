"""What the objectives ask of the judgement: the strictest limit of each target."""

from collections.abc import Sequence

from analyzers.slo import EXPLAINED_BY, Slo
from app.alerts import history, loop
from app.alerts.measure import scope
from app.store import Store


def limits(store: Store, engines: Sequence[str]) -> dict[str, float]:
    """The strictest threshold of each target over these engines, in seconds."""
    found: dict[str, float] = {}
    for slo in all_of(store):
        if not scope(store, slo, engines).engines:
            continue
        pairs = (
            [("ttft", slo.threshold_s), ("tpot", slo.tpot_s)]
            if slo.kind == "goodput"
            else [(EXPLAINED_BY.get(slo.kind, ""), slo.threshold_s)]
        )
        for target, seconds in pairs:
            if target and seconds is not None and slo.kind != "queue":
                found[target] = min(seconds, found.get(target, seconds))
    return found


def all_of(store: Store) -> tuple[Slo, ...]:
    """The objectives of the file and of the dashboard."""
    return history.all_slos(store, loop.current())
