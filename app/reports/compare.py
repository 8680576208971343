"""Two windows compared, as text and as plain values."""

from typing import Any

from analyzers.compare import Change, Comparison
from app.reports.words import NAMES, amount


def render(found: Comparison) -> str:
    """The comparison on one screen: a sentence a target, then stages, links and mechanisms."""
    lines = [*found.state, *(change.says for change in found.changes.values())]
    for change in found.changes.values():
        if change.difference_s is None:
            continue
        lines += [
            "",
            f"{NAMES[change.target]} {amount(change.before_s, change.target)} -> {amount(change.after_s, change.target)}",
        ]
        for title, values in (("stage", change.stages), ("link", change.links), ("mechanism", change.mechanisms or {})):
            shown = {name: value for name, value in values.items() if abs(value) > 0.005 * (change.before_s or 1.0)}
            lines += [
                f"  {title:<10} {name:<58} {_signed(value, change.target):>10}"
                for name, value in sorted(shown.items(), key=lambda item: -abs(item[1]))
            ]
        if change.unexplained_s is not None:
            lines.append(f"  {'':<10} {'unexplained':<58} {_signed(change.unexplained_s, change.target):>10}")
    if found.configuration:
        lines += ["", "Configuration:", *(f"  - {c}" for c in found.configuration)]
    if found.conditions:
        lines += ["", "Conditions:", *(f"  - {c}" for c in found.conditions)]
    return "\n".join(lines)


def _signed(seconds: float, name: str) -> str:
    return ("+" if seconds > 0 else "") + amount(seconds, name)


def document(found: Comparison) -> dict[str, Any]:
    """The comparison as plain values, seconds."""
    return {
        "targets": {name: _change(change) for name, change in found.changes.items()},
        "configuration": list(found.configuration),
        "conditions": list(found.conditions),
        "state": list(found.state),
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "before_s": change.before_s,
        "after_s": change.after_s,
        "difference_s": change.difference_s,
        "verdict": change.verdict,
        "says": change.says,
        "stages": dict(change.stages),
        "links": dict(change.links),
        "mechanisms": None if change.mechanisms is None else dict(change.mechanisms),
        "unexplained_s": change.unexplained_s,
    }
