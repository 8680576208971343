"""PDF: the page on paper, without a browser (extra `pdf`: WeasyPrint)."""

from collections.abc import Mapping
from typing import Any, Final

from analyzers.model import Incident
from app.reports.document import document
from app.reports.sheet import page

SUFFIX: Final = ".pdf"
MEDIA_TYPE: Final = "application/pdf"


class PdfMissingError(RuntimeError):
    """WeasyPrint is not installed; the message says how to get it."""


def render(incident: Incident) -> bytes:
    """The incident as PDF. Raises PdfMissingError without the extra."""
    return paper(document(incident))


def paper(plain: Mapping[str, Any]) -> bytes:
    """A document as PDF."""
    try:
        from weasyprint import HTML  # noqa: PLC0415 an extra
    except (ImportError, OSError) as error:
        raise PdfMissingError(
            f"PDF needs WeasyPrint ({error}): pip install 'weaklink[pdf]' and, on slim systems, libpango"
        ) from error
    made: bytes = HTML(string=page(plain, still=True)).write_pdf()
    return made
