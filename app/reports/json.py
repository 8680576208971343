"""JSON: the whole attribution for programs. Keys are only ever added; unknown numbers are null."""

import json
from typing import Final

from analyzers.model import Incident
from app.reports.document import document

SUFFIX: Final = ".json"
MEDIA_TYPE: Final = "application/json"


def render(incident: Incident) -> str:
    """The incident as one JSON object (README, JSON contract)."""
    return json.dumps(document(incident), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
