"""A target as the twin sees it: its shares of the wait and of decoding take the place of the books' parts (attribution.md section 3).

The books say which seconds were spent where; the twin says what would be left of them. Stages stay as measured: a share is laid
into the cells that the books gave the link, and where these are full into what is left of the stages.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from analyzers.books import NOMINAL_OUTPUT_S, Books
from analyzers.model import TARGETS, Part, Stage, Target
from analyzers.whatif import LOAD_TIER, WhatIf

WAIT: Final = (Stage.FRONTEND, Stage.QUEUE, Stage.PREFILL)

Cells = dict[str, dict[Stage, float]]


def with_twin(target: Target, replay: WhatIf, books: Books) -> Target:
    """Parts and savings by the twin where it meets what was measured of the target; outside its gate the books speak alone."""
    if target.measured_s is None:
        return target
    gate = ", ".join(f"{name} {value:.2f}" for name, value in replay.gate.items())
    if not replay.holds_of[target.name]:
        why = f"the twin is outside its gate (twin / measured: {gate}): parts and savings are the books'; a paired run would settle them"
        return replace(target, conditions=(*target.conditions, why))
    cells = _cells(target, replay, books)
    saves, last = replay.saves[target.name], replay.last[target.name]
    parts = tuple(_part(p, cells[p.link], saves, last) if p.link in cells else p for p in target.parts)
    left = target.measured_s - sum(p.seconds or 0.0 for p in parts)
    unexplained = min(target.unexplained_s or 0.0, max(0.0, left))
    said = f"parts and savings by the twin (twin / measured: {gate}; {replay.load})"
    return replace(
        target, parts=parts, floor_s=left - unexplained, unexplained_s=unexplained, conditions=(*target.conditions, said)
    )


def _part(part: Part, cells: dict[Stage, float], saves: Mapping[str, float], last: Mapping[str, float]) -> Part:
    seconds = sum(cells.values())
    if part.link in LOAD_TIER:
        # of a load link a fault is what the books call one, as far as the twin agrees to the part
        share = max(0.0, min(1.0, seconds / part.seconds)) if part.seconds else 0.0
        return replace(part, seconds=seconds, cells=cells, fault_s=(part.fault_s or 0.0) * share)
    return replace(
        part, seconds=seconds, cells=cells, fault_s=max(0.0, seconds), saves_s=saves[part.link], last_s=last[part.link]
    )


def _cells(target: Target, replay: WhatIf, books: Books) -> Cells:
    """Cells of the links that the twin replays, in the target's seconds; none of a link that the books do not know."""
    inside = TARGETS[target.name]
    measured = {stage: seconds or 0.0 for stage, seconds in target.stages.items()}
    per = books.stages[Stage.DECODE] / measured[Stage.DECODE] if measured.get(Stage.DECODE) else 1.0
    mine = {p.link: p for p in target.parts if p.link in replay.shares["wait"] and p.seconds is not None}
    taken = {stage: sum(p.cells.get(stage, 0.0) for p in target.parts if p.link not in mine) for stage in inside}
    cells: Cells = {link: {} for link in mine}
    if Stage.DECODE in inside:
        room = measured[Stage.DECODE] - taken[Stage.DECODE]
        # what the twin does not replay lies inside the steps that it was fitted to
        share = room / measured[Stage.DECODE] if measured[Stage.DECODE] > 0 else 0.0
        shares = {link: share * replay.shares["decode"][link] / per for link in mine}
        for link, seconds in _fitting(shares, room).items():
            cells[link][Stage.DECODE] = seconds
    if Stage.QUEUE in inside:
        nominal = {Stage.FRONTEND: books.frontend_nominal_s, Stage.OUTPUT: NOMINAL_OUTPUT_S}
        rooms = {stage: max(0.0, measured[stage] - taken[stage] - nominal.get(stage, 0.0)) for stage in WAIT}
        shares = _fitting({link: replay.shares["wait"][link] for link in mine}, sum(rooms.values()))
        for link, row in _laid(shares, {link: p.cells for link, p in mine.items()}, rooms).items():
            cells[link] |= row
    return cells


def _fitting(shares: Mapping[str, float], room: float) -> dict[str, float]:
    """Shares that are no more than there is room for."""
    total = sum(shares.values())
    return {link: value * room / total for link, value in shares.items()} if total > max(room, 0.0) else dict(shares)


def _laid(shares: Mapping[str, float], were: Mapping[str, Mapping[Stage, float]], rooms: Mapping[Stage, float]) -> Cells:
    """Seconds of each link over the stages before decoding: as the books had them, and what overflows a stage in the others."""
    rows: Cells = {}
    for link, seconds in shares.items():
        had = {s: max(0.0, were[link].get(s, 0.0)) for s in WAIT}
        weight = had if sum(had.values()) > 0 else rooms
        whole = sum(weight[s] for s in WAIT)
        rows[link] = {s: seconds * weight[s] / whole if whole > 0 else seconds / len(WAIT) for s in WAIT}
    slack = {s: rooms[s] - sum(row[s] for row in rows.values()) for s in WAIT}
    spare = {s: max(0.0, value) for s, value in slack.items()}
    for s in WAIT:
        given = sum(max(0.0, row[s]) for row in rows.values())
        if slack[s] >= 0 or given <= 0 or sum(spare.values()) <= 0:
            continue
        for row in rows.values():
            moved = -slack[s] * max(0.0, row[s]) / given
            row[s] -= moved
            for other, room in spare.items():
                row[other] += moved * room / sum(spare.values())
    return rows
