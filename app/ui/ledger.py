"""Where the measured seconds went: floor + parts + unexplained, as a bar and as a table whose column adds up."""

from collections.abc import Sequence

from analyzers.model import Part, Target
from app.ui.words import DASH, LABELS, MINUS, TITLES, esc, fixed, places_of, titled, unit


def ledger(target: Target) -> str:
    """Bar, key and table of one target, as HTML; a sentence instead where no seconds were measured."""
    if target.measured_s is None:
        return _states(target)
    places = places_of(target.name, target.measured_s)
    per = " a token" if target.name == "tpot" else " a request"
    title = f"Where the {fixed(target.name, target.measured_s, places)} {unit(target.name)}{per} went: measured = floor + parts + unexplained"
    return f'<div class="wl-title">{title}</div>{_bar(target, places)}{_table(target, places)}'


def _items(target: Target) -> list[tuple[str, float, str]]:
    """(name, seconds, class) of the bar's pieces, in chain order after the floor."""
    found = [("floor", target.floor_s or 0.0, "wl-floor")]
    grey = 0
    for part in target.parts:
        if not part.seconds or part.seconds <= 0:
            continue
        look = "wl-judge" if part.status == "limiting" else f"wl-part{grey % 4}"
        grey += part.status != "limiting"
        found.append((TITLES[part.link], part.seconds, look))
    if (target.unexplained_s or 0.0) > 0:
        found.append(("unexplained", target.unexplained_s or 0.0, "wl-rest"))
    return found


def _bar(target: Target, places: int) -> str:
    """Pieces between shared edges, so that no rounding opens a gap; what is explained twice is hatched beyond the measured end."""
    items, measured = _items(target), target.measured_s or 0.0
    total = max(measured, sum(seconds for _, seconds, _ in items), 1e-12)
    pieces, edge = [], 0.0
    for name, seconds, look in items:
        pieces.append(f'<i class="{look}" style="left:{100 * edge / total:.4f}%;right:{100 * max(0.0, 1 - (edge + seconds) / total):.4f}%" title="{esc(name)}"></i>')
        edge += seconds
    if measured < total * (1 - 1e-6):
        pieces.append(f'<i class="over" style="left:{100 * measured / total:.4f}%;right:0" title="explained beyond what was measured"></i>')
    key = "".join(
        f'<span{" class=judge" if look == "wl-judge" else ""}><i class="{look}"></i>{esc(name)} {fixed(target.name, seconds, places)}</span>'
        for name, seconds, look in items if float(fixed(target.name, seconds, places).replace(MINUS, "-").replace(",", ""))
    )
    return f'<div class="wl-ledger">{"".join(pieces)}</div><div class="wl-key">{key}</div>'


def _table(target: Target, places: int) -> str:
    smallest = 0.5 * 10.0**-places / (1000 if unit(target.name) == "ms" else 1)
    shown = sorted((p for p in target.parts if p.seconds is not None and abs(p.seconds) >= smallest), key=lambda p: (p.status != "limiting", -(p.seconds or 0.0)))
    rows = [_row(target, part, places) for part in shown]
    rows.append(_plain("Floor", target.floor_s, places, target, "work that nobody else causes: the request alone on an idle server"))
    rest = target.unexplained_s or 0.0
    if abs(rest) >= smallest:
        rows.append(_plain("Unexplained", rest, places, target, "no link accounts for it" if rest > 0 else "links account for more than was measured"))
    rows.append(_plain("Measured", target.measured_s, places, target, "mean over the window", "sum"))
    rows += _rest(target, [p for p in target.parts if p not in shown], places)
    return (
        f'<table class="wl-table"><thead><tr><th>link</th><th class="num">part, {unit(target.name)}</th><th class="num">range</th>'
        f'<th class="num">saves if<br>fixed first</th><th>evidence</th></tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _row(target: Target, part: Part, places: int) -> str:
    sign = {"limiting": "●", "contributing": "◐"}.get(part.status, "○")
    span = f"{fixed(target.name, part.range_s[0], places)} {DASH} {fixed(target.name, part.range_s[1], places)}" if part.range_s else DASH
    saves = DASH if part.saves_s is None else fixed(target.name, part.saves_s, places)
    most = 3 if part.status == "limiting" else 2
    said = [*(["load, not a fault by itself"] if not part.fault_s else []), *part.evidence] or list(part.conditions) or [part.fact]
    words, more = "; ".join(titled(line) for line in said[:most]), "; ".join(titled(line) for line in said[most:])
    rest = f' <span title="{esc(more)}">…</span>' if more else ""
    return (
        f'<tr class="{esc(part.status)}"><td><span class="wl-mark">{sign}</span>{esc(TITLES[part.link])}</td><td class="num">{fixed(target.name, part.seconds, places)}</td>'
        f'<td class="num" data-head="range">{span}</td><td class="num" data-head="saves">{saves}</td><td>{esc(words)}{rest}</td></tr>'
    )


def _plain(name: str, seconds: float | None, places: int, target: Target, words: str, look: str = "quiet") -> str:
    return (
        f'<tr class="{look}"><td><span class="wl-mark"></span>{name}</td><td class="num">{fixed(target.name, seconds, places)}</td>'
        f'<td class="num"></td><td class="num"></td><td>{esc(words)}</td></tr>'
    )


def _rest(target: Target, parts: Sequence[Part], places: int) -> list[str]:
    """Rows for what is nothing and what is unknown: never left out."""
    rows = []
    out = [p for p in parts if p.seconds is not None]
    if out:
        words = " · ".join(f"{TITLES[p.link]} ({p.fact})" if p.fact else TITLES[p.link] for p in out)
        rows.append(f'<tr class="quiet"><td><span class="wl-mark">✕</span>Ruled out</td><td class="num">0</td><td class="num"></td><td class="num"></td><td>{esc(words)}</td></tr>')
    for part in parts:
        if part.seconds is None:
            words = f"{TITLES[part.link]}: {titled('; '.join(part.conditions) or part.fact)}"
            bound = f"≤ {fixed(target.name, part.bound_s, places)}" if part.bound_s else "unknown"
            rows.append(f'<tr class="quiet"><td><span class="wl-mark">?</span>Cannot tell</td><td class="num">{bound}</td><td class="num"></td><td class="num"></td><td>{esc(words)}</td></tr>')
    return rows


def _states(target: Target) -> str:
    """The table of a target without seconds: what the signs say."""
    rows = "".join(
        f'<tr class="{esc(part.status)}"><td><span class="wl-mark">{"●" if part.status == "limiting" else "◐"}</span>{esc(TITLES[part.link])}</td><td>{esc("; ".join(titled(line) for line in part.evidence))}</td></tr>'
        for part in target.parts if part.evidence
    )
    title = f"No request seconds of {LABELS[target.name]} in this recording: nothing adds up here, links are named by signs"
    table = f'<table class="wl-table"><thead><tr><th>link</th><th>sign</th></tr></thead><tbody>{rows}</tbody></table>' if rows else '<p style="margin-top:.5rem">No sign of any link.</p>'
    return f'<div class="wl-title">{title}</div>{table}'
