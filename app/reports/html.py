"""HTML: one file that opens offline, with interactive charts (one copy of the library) and a print style."""

from typing import Final

from analyzers.model import Incident
from app.reports.document import document
from app.reports.sheet import page

SUFFIX: Final = ".html"
MEDIA_TYPE: Final = "text/html"


def render(incident: Incident) -> str:
    """The incident as a page."""
    return page(document(incident))
