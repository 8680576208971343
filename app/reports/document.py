"""The incident as plain values: what every report but the terminal's is made from. Keys are only ever added."""

import math
from collections.abc import Mapping
from typing import Any

from analyzers.model import Incident, Part, Target
from app.reports.told import told
from app.reports.words import stamp


def document(incident: Incident) -> dict[str, Any]:
    """The incident as plain values. Seconds are means per finished request (TPOT: per output token after the first)."""
    a = incident.attribution
    return {
        "weaklink": incident.version,
        "source": {
            "files": [dict(file) for file in incident.files],
            "vllm_version": _one(a.versions),
            "level": str(a.level),
            "restarts": a.restarts,
        },
        "window": {
            "start": stamp(a.start),
            "end": stamp(a.end),
            "model": _one(a.models),
            "engines": [f"{e.instance}/{e.engine}" for e in a.engines],
        },
        "requests": {"finished": a.finished, "aborted": a.aborted},
        "engines": [
            {
                "instance": e.instance,
                "engine": e.engine,
                "role": e.role,
                "requests": e.requests,
                "level": str(e.level),
                "targets": {name: _target(target) for name, target in e.targets.items()},
                "what_if": _what_if(e.what_if),
                "segments": [
                    {
                        "name": s.name,
                        "requests": s.requests,
                        "prompt_tokens": _number(s.prompt_tokens),
                        "seconds": _numbers(s.seconds),
                    }
                    for s in e.segments
                ],
            }
            for e in a.engines
        ],
        "targets": {name: _target(target) for name, target in a.targets.items()},
        "notes": list(a.notes),
        **told(incident),
    }


def _what_if(found: Any) -> dict[str, Any] | None:
    """The twin's answers, where it was asked: seconds by target and link."""
    if found is None:
        return None
    return {
        "gate": _numbers(found.gate),
        "holds": found.holds,
        "load": found.load,
        "joint_s": _numbers(found.joint),
        "saves_s": {name: _numbers(values) for name, values in found.saves.items()},
        "last_s": {name: _numbers(values) for name, values in found.last.items()},
        "parts_s": {name: _numbers(values) for name, values in found.parts.items()},
        "without_long_prompts_s": _numbers(found.without_long) if found.without_long else None,
        "met_ratio": {name: _numbers(values) for name, values in found.met.items()} if found.met else None,
        "without_long_prompts_and_faults_s": _numbers(found.without_long_joint) if found.without_long_joint else None,
    }


def _one(values: tuple[str, ...]) -> str | list[str] | None:
    return values[0] if len(values) == 1 else list(values) or None


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _numbers(values: Mapping[Any, float | None]) -> dict[str, float | None]:
    return {str(name): _number(value) for name, value in values.items()}


def _target(target: Target | None) -> dict[str, Any] | None:
    if target is None:
        return None
    return {
        "measured_s": _number(target.measured_s),
        "floor_s": _number(target.floor_s),
        "floor_whole": target.floor_whole,
        "unexplained_s": _number(target.unexplained_s),
        "stages": _numbers(target.stages),
        "parts": [_part(part) for part in target.parts],
        "limiting": target.limiting,
        "runner_up": target.runner_up,
        "verdict": target.verdict,
        "load": target.load,
        "conditions": list(target.conditions),
        "cannot_determine": [{"what": refusal.what, "measure": refusal.measure} for refusal in target.cannot_determine],
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "link": part.link,
        "seconds": _number(part.seconds),
        "cells": _numbers(part.cells),
        "fault_s": _number(part.fault_s),
        "range_s": None if part.range_s is None else [_number(part.range_s[0]), _number(part.range_s[1])],
        "saves_s": _number(part.saves_s),
        "last_s": _number(part.last_s),
        "bound_s": _number(part.bound_s),
        "status": part.status,
        "used": part.used,
        "pressure": _number(part.pressure),
        "fact": part.fact,
        "conditions": list(part.conditions),
        "evidence": list(part.evidence),
    }
