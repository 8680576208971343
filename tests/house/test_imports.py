"""Who may import whom: the arrows of the house point one way (read, judge, show)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from house.registries import FAMILIES, defines
from house.tree import ROOT

FOLDERS: Final = ("queries", "analyzers", "app")

# What a module may import beside the standard library, by the longest prefix of its name. ANY: whatever ONLY leaves.
ANY: Final = ("*",)
MAY_IMPORT: Final = {
    "queries": None,  # not even the standard library
    "analyzers": ("analyzers", "numpy"),
    "app": (),
    "app.__main__": ("app.cli",),
    "app.collectors": (
        "analyzers.model",
        "app.collectors",
        "httpx",
        "msgspec",
        "numpy",
        "opentelemetry",
        "prometheus_api_client",
        "pyarrow",
        "requests",  # sessions that prometheus_api_client takes
        "starlette",  # the routes that a source offers and the server mounts
        "uvicorn",  # `record --otlp` takes spans without the dashboard's server
        "yaml",  # file_sd as YAML (extra)
        "zmq",
    ),
    "app.store": ("queries", "analyzers.model", "app.arrow", "duckdb", "numpy", "pyarrow"),
    "app.arrow": ("numpy", "pyarrow"),
    "app.retention": ("app.store",),
    "app.kept": ("app.store",),
    "app.backup": ("app.store",),
    "app.operating": ANY,
    "app.access": ("starlette",),
    "app.seat": ("app.access", "app.store"),
    "app.routes": ANY,
    "app.selfmetrics": ("app.live", "app.retention", "app.store"),
    "app.selfcheck": ("app.retention", "app.store", "httpx"),
    # a log is also sent, to a dashboard that holds the store (httpx)
    "app.live": ("analyzers.model", "app.collectors", "app.config", "app.ingest", "app.live", "app.store", "httpx", "numpy"),
    "app.pipeline": ("analyzers", "app.align", "app.retention", "app.routers", "app.store", "numpy"),
    "app.routers": ("app.store",),  # what stands before the engines
    "app.untimed": ("analyzers.model", "numpy"),  # texts of /metrics without a time: order and processes
    "app.align": ("analyzers.model", "app.store", "numpy"),  # a log's clock against the counters of its server
    "app.doctor": ("analyzers.model", "app.pipeline", "app.store", "httpx"),  # what a server says, and what it could say
    "app.incident": (  # a window gathered for a report; what it cost is counted as objectives are
        "analyzers",
        "app.align",
        "app.alerts",
        "app.incident",
        "app.pipeline",
        "app.store",
        "numpy",
    ),
    "app.shards": (  # bundles judged by Ray tasks (extra), and combined
        "analyzers",
        "app.collectors.sources.bundle",
        "app.ingest",
        "app.pipeline",
        "app.store",
        "pyarrow",
        "ray",
    ),
    "app.redact": (),
    "app.extract": ("app.collectors.formats.rows", "app.extract_words", "app.pipeline", "app.redact", "app.store", "numpy"),
    "app.extract_words": ("app.redact",),
    "app.reporting": (  # from what is asked to a file; its data are loaded again to see that they judge the same
        "analyzers",
        "app.alerts",
        "app.extract",
        "app.incident",
        "app.ingest",
        "app.pipeline",
        "app.redact",
        "app.reports",
        "app.store",
    ),
    "app.alerts": (
        "analyzers",
        "app.alerts",
        "app.pipeline",
        "app.store",  # its own tables (states, alerts, outbox) are written together, in one transaction
        "httpx",
        "numpy",
        "typer",  # the verbs of `weaklink alerts`
    ),
    "app.experiments": (
        "analyzers",
        "app.experiments",
        "app.ingest",
        "app.pipeline",
        "app.reports",
        "app.store",
        "numpy",
        "typer",
    ),
    "app.reports": ("analyzers", "app.pipeline", "app.reports", "jinja2", "numpy", "plotly", "weasyprint"),
    "app.config": ANY,
    "app.ingest": ANY,
    "app.server": ANY,
    "app.cli": ANY,
    "app.ui": ANY,
}
# Only these import it, whatever the table says.
ONLY: Final = {
    "streamlit": ("app.ui", "app.server"),  # the server starts Streamlit's own application
    "duckdb": ("app.store",),
}
# The analyzers judge without I/O, clock or randomness (a generator comes in, or a seed does).
IMPURE: Final = {
    "asyncio", "glob", "http", "io", "os", "pathlib", "random", "secrets", "shutil", "socket", "sqlite3",
    "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
# What a command line that only reads a bundle does not pay for.
HEAVY: Final = ("pandas", "streamlit")


def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    files = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def imports(name: str, file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of each import; `from a import b` is a.b where that is a module of ours."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            start = parts[: len(parts) - node.level + 1] if node.level else []
            origin = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                yield node.lineno, inner if inner in MODULES else origin


MODULES: Final = modules()


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def complaints(name: str, imported: str) -> Iterator[str]:
    """Yield what is wrong with `name` importing `imported`."""
    top = imported.partition(".")[0]
    rule = max((prefix for prefix in MAY_IMPORT if within(name, (prefix,))), key=len)
    allowed = MAY_IMPORT[rule]
    standard = top in sys.stdlib_module_names
    if top in ONLY and not within(name, ONLY[top]):
        yield f"only {' and '.join(ONLY[top])} may import {top}"
    elif allowed is None:
        yield f"{rule} imports nothing"
    elif allowed == ANY:
        if top == "tests":
            yield "the program does not import its tests"
    elif not standard and not within(imported, allowed):
        yield f"{rule} may import {', '.join(allowed) or 'only the standard library'}"
    if rule == "analyzers" and top in IMPURE:
        yield "analyzers have no I/O, clock or randomness"


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_import_table_holds(folder: str):
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {imported}: {complaint}"
        for name, file in MODULES.items()
        if within(name, (folder,))
        for line, imported in imports(name, file)
        for complaint in complaints(name, imported)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_of_app_stands_in_the_table():
    new = [name for name in MODULES if name.count(".") == 1 and name.startswith("app.") and name not in MAY_IMPORT]
    assert not new, f"say in MAY_IMPORT what these may import: {new}"


@pytest.mark.parametrize("family", FAMILIES)
def test_members_of_a_family_do_not_import_each_other(family: str):
    """What several members share lies in a module beside them, and imports no member either."""
    package, mark = FAMILIES[family]
    beside = [name for name, file in MODULES.items() if name.rpartition(".")[0] == package and file.name != "__init__.py"]
    siblings = [name for name in beside if defines(MODULES[name], mark)]
    wrong = [
        f"{MODULES[name].relative_to(ROOT)}:{line} imports its sibling {imported}"
        for name in beside
        for line, imported in imports(name, MODULES[name])
        if imported in siblings
    ]
    assert not wrong, "\n".join(wrong)


def test_commands_start_without_the_dashboard():
    for name in ("app.cli", "app.pipeline"):
        if name not in MODULES:
            continue
        code = f"import sys, {name}; print(*[heavy for heavy in {HEAVY!r} if heavy in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert not done.stdout.split(), f"import {name} loads {done.stdout}"


@pytest.mark.parametrize(
    ("name", "imported", "complaint"),
    [
        ("queries", "importlib.resources", "queries imports nothing"),
        ("analyzers.books", "numpy.typing", None),
        ("analyzers.books", "math", None),
        ("analyzers.books", "time", "no I/O, clock or randomness"),
        ("analyzers.books", "app.store", "analyzers may import"),
        ("analyzers.books", "scipy", "analyzers may import"),
        ("app.collectors.formats.spans", "app.store", "app.collectors may import"),
        ("app.collectors.formats.spans", "analyzers.books", "app.collectors may import"),
        ("app.collectors.formats.spans", "analyzers.model", None),
        ("app.pipeline", "duckdb", "only app.store may import duckdb"),
        ("app.reports.html", "streamlit", "only app.ui and app.server may import streamlit"),
        ("app.reports.html", "app.store", "app.reports may import"),
        ("app.server", "streamlit.starlette", None),
        ("app.cli", "streamlit", "only app.ui and app.server may import streamlit"),
        ("app.cli", "app.ui.screens.chain", None),
    ],
)
def test_the_table_itself(name: str, imported: str, complaint: str | None):
    found = list(complaints(name, imported))
    assert bool(found) == bool(complaint)
    assert complaint is None or complaint in found[0]
