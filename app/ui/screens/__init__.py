"""The pages, in the order of the navigation: one module each, with TITLE and `page(view)`."""

from types import ModuleType
from typing import Final

from app.ui.screens import overview, timeline, upload

PAGES: Final[tuple[ModuleType, ...]] = (overview, timeline, upload)
