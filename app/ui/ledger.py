"""Where the measured seconds went: floor + parts + unexplained, as a bar and as a table whose column adds up."""

from collections.abc import Callable, Sequence
from typing import Final

from analyzers.model import Part, Target
from app.ui.markup import Html, div, join, link, row, table, tag
from app.ui.words import DASH, LABELS, TITLES, fixed, places_of, titled, unit

Address = Callable[[str], str]  # of a link's page
NUMBERS: Final = (1, 2, 3)  # columns of numbers
NARROW: Final = {2: "range", 3: "saves"}
FLOOR: Final = "work that nobody else causes: the request alone on an idle server"


def ledger(target: Target, address: Address) -> Html:
    """Bar, key and table of one target; what the signs say where no seconds were measured. `address`: of a link's page."""
    if target.measured_s is None:
        return _states(target, address)
    places = places_of(target.name, target.measured_s)
    per = "a token" if target.name == "tpot" else "a request"
    whole = f"{fixed(target.name, target.measured_s, places)} {unit(target.name)}"
    title = f"Where the {whole} {per} went: measured = floor + parts + unexplained"
    return join([div("wl-title", title), _bar(target, places), _table(target, places, address)])


def _smallest(target: Target, places: int) -> float:
    """Seconds from which a number does not print as 0."""
    return 0.5 * 10.0**-places / (1000 if unit(target.name) == "ms" else 1)


def _items(target: Target) -> list[tuple[str, float, str]]:
    """(name, seconds, class) of the bar's pieces, in chain order after the floor."""
    found = [("floor" if target.floor_whole else "floor, at least", target.floor_s or 0.0, "wl-floor")]
    grey = 0
    for part in target.parts:
        if part.seconds and part.seconds > 0:
            limiting = part.status == "limiting"
            found.append((TITLES[part.link], part.seconds, "wl-judge" if limiting else f"wl-part{grey % 4}"))
            grey += not limiting
    if target.unexplained_s and target.unexplained_s > 0:
        found.append(("unexplained", target.unexplained_s, "wl-rest"))
    return found


def _bar(target: Target, places: int) -> Html:
    """Pieces between shared edges, so that no rounding opens a gap; what is explained twice is hatched past the measured end."""
    items, measured = _items(target), target.measured_s or 0.0
    total = max(measured, sum(seconds for _, seconds, _ in items), 1e-12)
    pieces, edge = [], 0.0
    for name, seconds, look in items:
        right = max(0.0, 1 - (edge + seconds) / total)
        pieces.append(tag("i", look=look, style=f"left:{100 * edge / total:.4f}%;right:{100 * right:.4f}%", title=name))
        edge += seconds
    if measured < total * (1 - 1e-6):
        pieces.append(tag("i", look="over", style=f"left:{100 * measured / total:.4f}%;right:0", title="more than was measured"))
    key = [
        tag(
            "span",
            tag("i", look=look),
            f"{name} {fixed(target.name, seconds, places)}",
            look="judge" if look == "wl-judge" else "",
        )
        for name, seconds, look in items
        if seconds >= _smallest(target, places)
    ]
    return join([div("wl-ledger", *pieces), div("wl-key", *key)])


def _table(target: Target, places: int, address: Address) -> Html:
    least = _smallest(target, places)
    shown = [part for part in target.parts if part.seconds is not None and abs(part.seconds) >= least]
    shown.sort(key=lambda part: (part.status != "limiting", -(part.seconds or 0.0)))
    rows = [_row(target, part, places, address) for part in shown]
    floor = fixed(target.name, target.floor_s, places)
    if not target.floor_whole:
        floor = f"≥ {floor}" if target.floor_s else "unknown"
    rows.append(_plain(("", "Floor", floor, FLOOR if target.floor_whole else f"{FLOOR}; its steps are unexplained, too")))
    rest = target.unexplained_s or 0.0
    if abs(rest) >= least:
        why = "no link accounts for it" if rest > 0 else "links account for more than was measured"
        rows.append(_plain(("", "Unexplained", fixed(target.name, rest, places), why)))
    rows.append(_plain(("", "Measured", fixed(target.name, target.measured_s, places), "mean over the window"), "sum"))
    rows += _rest(target, [part for part in target.parts if part not in shown], places, address)
    saves = join(["saves if", Html("<br>"), "fixed first"])
    heads = (("link", ""), (f"part, {unit(target.name)}", "num"), ("range", "num"), (saves, "num"), ("evidence", ""))
    return table(heads, rows)


def _named(sign: str, name: object) -> Html:
    return join([tag("span", sign, look="wl-mark"), name])


def _row(target: Target, part: Part, places: int, address: Address) -> Html:
    sign = {"limiting": "●", "contributing": "◐"}.get(part.status, "○")
    span = DASH
    if part.range_s:
        span = f"{fixed(target.name, part.range_s[0], places)} {DASH} {fixed(target.name, part.range_s[1], places)}"
    saves = DASH if part.saves_s is None else fixed(target.name, part.saves_s, places)
    cells = (
        _named(sign, link(address(part.link), TITLES[part.link])),
        fixed(target.name, part.seconds, places),
        span,
        saves,
        _evidence(part),
    )
    return row(cells, numbers=NUMBERS, look=part.status, heads=NARROW)


def _evidence(part: Part) -> Html:
    """The first sentences of evidence; the others beside the pointer."""
    most = 3 if part.status == "limiting" else 2
    load = () if part.fault_s else ("load, not a fault by itself",)
    said = [titled(line) for line in (*load, *part.evidence) or part.conditions or (part.fact,)]
    more = join([" ", tag("span", "…", title="; ".join(said[most:]))]) if said[most:] else None
    return join(["; ".join(said[:most]), more])


def _plain(cells: tuple[str, str, str, object], look: str = "quiet") -> Html:
    """A row without range and saving: sign, name, number, words."""
    sign, name, number, words = cells
    return row((_named(sign, name), number, "", "", words), numbers=NUMBERS, look=look)


def _rest(target: Target, parts: Sequence[Part], places: int, address: Address) -> list[Html]:
    """Rows for what is nothing and what is unknown: never left out."""
    rows = []
    out = [part for part in parts if part.seconds is not None]
    if out:
        words = join(
            [join([link(address(part.link), TITLES[part.link]), f" ({part.fact})" if part.fact else ""]) for part in out], " · "
        )
        rows.append(_plain(("✕", "Ruled out", "0", words)))
    for part in parts:
        if part.seconds is None:
            words = join([link(address(part.link), TITLES[part.link]), f": {titled('; '.join(part.conditions) or part.fact)}"])
            bound = f"≤ {fixed(target.name, part.bound_s, places)}" if part.bound_s else "unknown"
            rows.append(_plain(("?", "Cannot tell", bound, words)))
    return rows


def _states(target: Target, address: Address) -> Html:
    """The table of a target without seconds: what the signs say."""
    title = f"No request seconds of {LABELS[target.name]} in this recording: nothing adds up here, links are named by signs"
    rows = [
        row(
            (
                _named("●" if part.status == "limiting" else "◐", link(address(part.link), TITLES[part.link])),
                titled("; ".join(part.evidence)),
            ),
            look=part.status,
        )
        for part in target.parts
        if part.evidence
    ]
    signs = table((("link", ""), ("sign", "")), rows) if rows else tag("p", "No sign of any link.", style="margin-top:.5rem")
    return join([div("wl-title", title), signs])
