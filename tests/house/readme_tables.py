"""The README's tables, made from the code. Each stands between `<!-- table: NAME -->` and `<!-- end -->`."""

import importlib
import re
from collections.abc import Iterable
from typing import Final

from house.registries import first_line, last_name, members, present

BLOCK: Final = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(heads: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    """Return a Markdown table; nothing where there are no rows."""
    lines = [f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in rows]
    return "\n".join([f"| {' | '.join(heads)} |", "|---|---|", *lines, ""]) if lines else ""


def of_members(registry: str) -> list[tuple[str, str]]:
    return [(last_name(module), first_line(module.__doc__)) for module in members(registry)]


def verbs() -> list[tuple[str, str]]:
    """List the verbs of the command line with the first line of their help."""
    if not present("app.cli"):
        return []
    typer = importlib.import_module("typer")
    cli = importlib.import_module("app.cli")
    if not isinstance(getattr(cli, "app", None), typer.Typer):
        return []
    command = typer.main.get_command(cli.app)  # not of the apps that it takes in: those are verbs of it
    commands = getattr(command, "commands", {command.name or "weaklink": command})
    return [(f"weaklink {name}", first_line(verb.help)) for name, verb in commands.items() if not verb.hidden]


TABLES: Final = {
    "links": lambda: table(("link", "what it is"), of_members("CHAIN")),
    "hypotheses": lambda: table(("change it proposes", "what it does"), of_members("HYPOTHESES")),
    "formats": lambda: table(("format", "what it reads"), of_members("FORMATS")),
    "sources": lambda: table(("source", "where the bytes come from"), of_members("SOURCES")),
    "pages": lambda: table(("page", "what it shows"), of_members("PAGES")),
    "reports": lambda: table(("report", "what it writes"), of_members("REPORTS")),
    "cli": lambda: table(("command", "what it does"), verbs()),
}


def filled(readme: str) -> str:
    """Return the README with every table made anew; KeyError for a table that nobody makes."""
    return BLOCK.sub(lambda block: block[1] + TABLES[block[2]]() + block[3], readme)
