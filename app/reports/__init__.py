"""What is shown outside the dashboard: one module an output format, each with a docstring, SUFFIX, MEDIA_TYPE and render(incident)."""

from types import ModuleType
from typing import Final

from app.reports import html, json, markdown, pdf, text

REPORTS: Final[tuple[ModuleType, ...]] = (text, json, html, markdown, pdf)
