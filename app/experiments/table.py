"""Experiments in the store: started with a prediction, completed with a recording after the change and its verdict."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzers.model import Batch, Effect, Hypothesis
from app.store import Store


@dataclass(frozen=True, slots=True)
class Row:
    """One experiment. `prediction` and `judgement` are as printed; the latter None until a recording after was attached."""

    number: int
    hypothesis: str
    started_ts: float
    before: str
    before_path: Path | None
    prediction: Mapping[str, Any]
    after: str | None
    judged_ts: float | None
    judgement: Mapping[str, Any] | None


_COLUMNS = "experiment_id, hypothesis, started_ts, before_name, before_path, prediction, after_name, judged_ts, judgement"


def start(store: Store, prediction: Mapping[str, Any], before: str, path: Path | None, now: float | None = None) -> int:
    """Keep a hypothesis with its prediction; its number."""
    with store.transaction():
        number = int(store.rows("SELECT nextval('experiment_id_seq')")[0][0])
        columns: dict[str, list[Any]] = {
            "experiment_id": [number],
            "hypothesis": [prediction["name"]],
            "started_ts": [time.time() if now is None else now],
            "before_name": [before],
            "before_path": [None if path is None else str(path.resolve())],
            "prediction": [json.dumps(prediction, allow_nan=False)],
        }
        store.add(Batch("experiment", columns))
    return number


def finish(store: Store, number: int, after: str, judgement: Mapping[str, Any], now: float | None = None) -> None:
    """Keep the recording after and the verdict."""
    store.execute(
        "UPDATE experiment SET after_name = ?, judged_ts = ?, judgement = ? WHERE experiment_id = ?",
        [after, time.time() if now is None else now, json.dumps(judgement, allow_nan=False), number],
    )


def rows(store: Store) -> list[Row]:
    """All experiments, the newest first."""
    return [_row(found) for found in store.rows(f"SELECT {_COLUMNS} FROM experiment ORDER BY experiment_id DESC")]


def one(store: Store, number: int) -> Row | None:
    """An experiment by its number."""
    found = store.rows(f"SELECT {_COLUMNS} FROM experiment WHERE experiment_id = ?", [number])
    return _row(found[0]) if found else None


def _row(found: tuple[Any, ...]) -> Row:
    number, name, started, before, path, prediction, after, judged, judgement = found
    return Row(
        number, name, started, before, Path(path) if path else None, json.loads(prediction), after, judged,
        json.loads(judgement) if judgement else None,
    )  # fmt: skip


def kept(prediction: Mapping[str, Any]) -> Hypothesis:
    """The hypothesis of a stored prediction."""
    effects = {
        target: Effect(found["saves_s"], tuple(found["range_s"]) if found["range_s"] else None)
        for target, found in prediction["effect"].items()
    }
    return Hypothesis(
        prediction["name"], prediction["change"], tuple(prediction["flags"]), prediction["claim"], effects, prediction["predicted_by"],
        tuple(prediction["costs"]), prediction["confused_with"], tuple(prediction["conditions"]), prediction["test"], prediction["undoes"],
    )  # fmt: skip
