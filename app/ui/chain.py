"""The token-state chain as boxes in chain order, each with seconds, pressure, fact and mark; the measured stages beneath."""

from collections.abc import Sequence
from typing import Final

from analyzers.links import CHAIN
from analyzers.model import TARGETS, Part, Stage, Target
from app.ui.words import DASH, LABELS, TITLES, esc, first_sentence, value

# The first link of each stage's band; links between belong to the band they stand in, so that a new one has a place.
FIRST: Final = {
    "frontend": Stage.FRONTEND,
    "slots": Stage.QUEUE,
    "kv_transfer": Stage.PREFILL,
    "decode_batch": Stage.DECODE,
    "output": Stage.OUTPUT,
}
MARKS: Final = {"limiting": "● limiting", "contributing": "◐ contributing", "ok": "○ ok", "unknown": "? unknown"}


def chain(target: Target) -> str:
    """The chain of one target, as HTML."""
    states = all(part.seconds is None for part in target.parts) and target.measured_s is None
    what = "mean seconds of one request's" if target.name != "tpot" else "mean milliseconds of one output token's"
    title = f"The token-state chain, {what} {LABELS[target.name]} · bar = pressure, how near a link is to its own limit · only the limiting link is coloured"
    if states:
        title = "The token-state chain · no request seconds in this recording: links are named from gauges and rates, not measured"
    boxes = "".join(_box(target, part, states=states) for part in target.parts)
    return _card(title, boxes, _bands(target, states=states), len(target.parts), "states" if states else "")


def unmeasured() -> str:
    """The chain where nothing was loaded: what each link is."""
    boxes = "".join(
        f'<div class="wl-link unknown"><div class="name">{esc(module.LINK.title)}</div><div class="fact">{esc(first_sentence(module.__doc__))}</div></div>'
        for module in CHAIN
    )
    spans = _spans([module.LINK.name for module in CHAIN])
    bands = "".join(f'<div class="wl-band {stage.value}" style="grid-column: span {columns}">{stage.value.upper()}</div>' for stage, columns in spans)
    return _card("The token-state chain: the links that a request passes, and the stages whose seconds they hold", boxes, bands, len(CHAIN))


def _card(title: str, boxes: str, bands: str, links: int, look: str = "") -> str:
    columns = f'style="--n:{links}"'
    return (
        f'<div class="wl-card"><div class="wl-title">{title}</div>'
        f'<div class="wl-chain {look}" {columns}>{boxes}</div><div class="wl-bands" {columns}>{bands}</div></div>'
    )


def _box(target: Target, part: Part, *, states: bool) -> str:
    limiting = part.status == "limiting"
    known = part.seconds is not None
    look = "limiting" if limiting else "off" if not part.used else "" if known else "unknown"
    if not part.used and not part.seconds:
        seconds = "not used"
    elif known:
        seconds = value(target.name, part.seconds)
    else:
        seconds = "no seconds" if states and limiting else DASH if states else "unknown"
    fact = part.fact if not states else "by its sign, below" if limiting else "a sign, below" if part.evidence else ""
    share = None if part.pressure is None or look in {"off", "unknown"} else max(0.0, min(1.0, part.pressure))
    bar = "" if states else '<div class="press none"></div>' if share is None else f'<div class="press"><i style="width:{100 * share:.1f}%"></i></div>'
    return (
        f'<div class="wl-link {look}" data-link="{esc(part.link)}"><div class="name">{esc(TITLES[part.link])}</div>'
        f'<div class="secs">{seconds}</div>{bar}<div class="fact">{esc(fact)}</div><div class="mark">{mark(target, part, states=states)}</div></div>'
    )


def mark(target: Target, part: Part, *, states: bool = False) -> str:
    """The mark of a link with its word: colour never stands alone."""
    if part.status == "limiting":
        return MARKS["limiting"]
    if not part.used:
        return f"{DASH} not used"
    if part.seconds is None:
        return "" if states else f"? up to {value(target.name, part.bound_s)}" if part.bound_s else MARKS["unknown"]
    if part.link == target.runner_up:
        return "◐ close behind" if target.verdict == "limited" else "◐ largest fault"
    if part.status == "contributing" and not part.fault_s:
        return "◐ load"
    return MARKS.get(part.status, esc(part.status))


def _spans(links: Sequence[str]) -> list[tuple[Stage, int]]:
    """The stage of each band and the number of links above it."""
    spans: list[tuple[Stage, int]] = []
    for link in links:
        if link in FIRST or not spans:
            spans.append((FIRST.get(link, Stage.FRONTEND), 0))
        spans[-1] = (spans[-1][0], spans[-1][1] + 1)
    return spans


def _bands(target: Target, *, states: bool) -> str:
    """A band of columns for each stage, with its measured seconds."""
    return "".join(_band(target, stage, columns, states=states) for stage, columns in _spans([part.link for part in target.parts]))


def _band(target: Target, stage: Stage, columns: int, *, states: bool) -> str:
    inside = stage in TARGETS[target.name]
    seconds = target.stages.get(stage)
    if not inside:
        shown = "after the first token" if target.name == "ttft" and stage is Stage.DECODE else ""
    else:
        shown = "" if states else "unknown" if seconds is None else f"<b>{value(target.name, seconds)}</b>"
    look = f"wl-band {stage.value}{'' if inside else ' outside'}"
    return f'<div class="{look}" style="grid-column: span {columns}">{stage.value.upper()} {shown}</div>'
