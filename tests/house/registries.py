"""The registries of the house: tuples of modules, each written out where its members lie."""

import ast
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Final

# registry -> package of its members, and the name that a member defines (None: each module is a member). What several members
# share lies in a module beside them that does not define it.
FAMILIES: Final = {
    "CHAIN": ("analyzers.links", "LINK"),
    "HYPOTHESES": ("analyzers.hypotheses", "propose"),
    "FORMATS": ("app.collectors.formats", "sniff"),
    "SOURCES": ("app.collectors.sources", None),
    "REPORTS": ("app.reports", "SUFFIX"),
    "PAGES": ("app.ui.screens", "page"),
}


def present(name: str) -> bool:
    """Tell whether this module exists, without importing it (but its parents)."""
    parent = name.rpartition(".")[0]
    return (not parent or present(parent)) and importlib.util.find_spec(name) is not None


def members(registry: str) -> tuple[ModuleType, ...]:
    """List the members in their order; none where the registry does not exist."""
    package = FAMILIES[registry][0]
    return tuple(getattr(importlib.import_module(package), registry, ())) if present(package) else ()


def last_name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def first_line(text: str | None) -> str:
    """Return the first sentence or line of a docstring, without its full stop."""
    return (text or "").strip().partition("\n")[0].strip().removesuffix(".")


def defines(file: Path, name: str | None) -> bool:
    """Tell whether a module has this name at its top level, without importing it."""
    if name is None:
        return True
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return name in found
