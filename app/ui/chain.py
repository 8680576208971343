"""The token-state chain as boxes in chain order, each with seconds, pressure, fact and mark; the measured stages beneath."""

from collections.abc import Callable, Sequence
from typing import Final

from analyzers.links import CHAIN
from analyzers.model import TARGETS, Part, Stage, Target
from app.ui.markup import Html, bold, div, tag
from app.ui.words import DASH, LABELS, TITLES, first_sentence, value

# The first link of each stage's band; links between belong to the band they stand in, so that a new one has a place.
FIRST: Final = {
    "frontend": Stage.FRONTEND,
    "slots": Stage.QUEUE,
    "kv_transfer": Stage.PREFILL,
    "decode_batch": Stage.DECODE,
    "output": Stage.OUTPUT,
}
KEY: Final = "bar = pressure, how near a link is to its own limit · only the limiting link is coloured"
NO_SECONDS: Final = "no request seconds in this recording: links are named from gauges and rates, not measured"


def chain(target: Target, address: Callable[[str], str]) -> Html:
    """The chain of one target; `address` leads to a link's page."""
    states = target.measured_s is None and all(part.seconds is None for part in target.parts)
    what = "milliseconds of one output token's" if target.name == "tpot" else "seconds of one request's"
    title = f"The token-state chain, mean {what} {LABELS[target.name]} · {KEY}"
    if states:
        title = f"The token-state chain · {NO_SECONDS}"
    spans = _spans([part.link for part in target.parts])
    boxes = [_box(target, part, address(part.link), states=states) for part in target.parts]
    bands = [_band(target, stage, columns, states=states) for stage, columns in spans]
    return _card(title, boxes, bands, "wl-chain states" if states else "wl-chain")


def unmeasured() -> Html:
    """The chain where nothing was loaded: what each link is."""
    boxes = [
        div("wl-link unknown", div("name", module.LINK.title), div("fact", first_sentence(module.__doc__))) for module in CHAIN
    ]
    spans = _spans([module.LINK.name for module in CHAIN])
    bands = [div(f"wl-band {stage.value}", stage.value.upper(), style=f"grid-column: span {columns}") for stage, columns in spans]
    return _card("The token-state chain: the links that a request passes, and the stages whose seconds they hold", boxes, bands)


def _card(title: str, boxes: Sequence[Html], bands: Sequence[Html], look: str = "wl-chain") -> Html:
    columns = f"--n:{len(boxes)}"
    return div("wl-card", div("wl-title", title), div(look, *boxes, style=columns), div("wl-bands", *bands, style=columns))


def _box(target: Target, part: Part, to: str, *, states: bool) -> Html:
    limiting = part.status == "limiting"
    look = "limiting" if limiting else "off" if not part.used else "unknown" if part.seconds is None else ""
    fact = part.fact
    if states:
        fact = "by its sign, below" if limiting else "a sign, below" if part.evidence else ""
    return tag(
        "a",
        div("name", TITLES[part.link]),
        div("secs", _seconds(target, part, states=states)),
        None if states else _pressure(None if look in {"off", "unknown"} else part.pressure),
        div("fact", fact),
        div("mark", mark(target, part, states=states)),
        look=f"wl-link {look}",
        href=to,
        target="_self",
        data_link=part.link,
    )


def _seconds(target: Target, part: Part, *, states: bool) -> str:
    """Not used, unknown and zero are three texts."""
    if not part.used and not part.seconds:
        return "not used"
    if part.seconds is not None:
        return value(target.name, part.seconds)
    if states:
        return "no seconds" if part.status == "limiting" else DASH
    return "unknown"


def _pressure(share: float | None) -> Html:
    if share is None:
        return div("press none")
    return div("press", tag("i", style=f"width:{100 * max(0.0, min(1.0, share)):.1f}%"))


def mark(target: Target, part: Part, *, states: bool = False) -> str:
    """The mark of a link with its word: colour never stands alone."""
    if part.status == "limiting":
        return "● limiting"
    if not part.used:
        return ""  # the seconds say so
    if part.seconds is None:
        bound = f"? up to {value(target.name, part.bound_s)}" if part.bound_s else "? unknown"
        return "" if states else bound
    if part.link == target.runner_up:
        return "◐ runner-up" if target.verdict == "limited" else "◐ largest fault"
    if part.status == "contributing":
        return "◐ contributing" if part.fault_s else "◐ load"
    return "○ ok"


def _spans(links: Sequence[str]) -> list[tuple[Stage, int]]:
    """The stage of each band and the number of links above it."""
    spans: list[tuple[Stage, int]] = []
    for link in links:
        if link in FIRST or not spans:
            spans.append((FIRST.get(link, Stage.FRONTEND), 0))
        spans[-1] = (spans[-1][0], spans[-1][1] + 1)
    return spans


def _band(target: Target, stage: Stage, columns: int, *, states: bool) -> Html:
    """A stage with its measured seconds; faint where it is no part of the target."""
    inside = stage in TARGETS[target.name]
    seconds = target.stages.get(stage)
    shown: object = ""
    if inside and not states:
        shown = "unknown" if seconds is None else bold(value(target.name, seconds))
    elif target.name == "ttft" and stage is Stage.DECODE:
        shown = "after the first token"
    look = f"wl-band {stage.value}" if inside else f"wl-band {stage.value} outside"
    return div(look, f"{stage.value.upper()} ", shown, style=f"grid-column: span {columns}")
