"""The registries of the house: tuples of modules, each written out where its members lie."""

import importlib
import importlib.util
from types import ModuleType
from typing import Final

WHERE: Final = {  # registry -> modules that may hold it
    "CHAIN": ("analyzers",),
    "HYPOTHESES": ("analyzers.hypotheses",),
    "FORMATS": ("app.collectors.formats",),
    "SOURCES": ("app.collectors.sources",),
    "REPORTS": ("app.reports",),
    "PAGES": ("app.ui", "app.ui.screens"),
}


def present(name: str) -> bool:
    """Tell whether this module exists, without importing it (but its parents)."""
    parent = name.rpartition(".")[0]
    return (not parent or present(parent)) and importlib.util.find_spec(name) is not None


def members(registry: str) -> tuple[ModuleType, ...]:
    """List the members in their order; none where the registry does not exist."""
    for name in WHERE[registry]:
        found = getattr(importlib.import_module(name), registry, None) if present(name) else None
        if found is not None:
            return tuple(found)
    return ()


def last_name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def first_line(text: str | None) -> str:
    """Return the first sentence or line of a docstring, without its full stop."""
    return (text or "").strip().partition("\n")[0].strip().removesuffix(".")
