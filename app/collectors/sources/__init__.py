"""Where bytes come from: one module per source. What several share lies beside this folder."""

from importlib import import_module
from types import ModuleType
from typing import Any, Final

NAMES: Final = ("bundle", "scrape", "prometheus", "otlp", "kv_events", "tail")

SOURCES: tuple[ModuleType, ...]


def __getattr__(name: str) -> Any:
    """SOURCES, imported when it is asked for: HTTP clients take longer to import than `analyze` takes for a bundle."""
    if name == "SOURCES":
        return tuple(import_module(f"{__name__}.{one}") for one in NAMES)
    raise AttributeError(name)
