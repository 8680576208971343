"""Writes a document in one of the formats: to a file, or to standard output."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.reports.markdown import text
from app.reports.page import charts
from app.reports.pdf import paper
from app.reports.sheet import page


def write(plain: Mapping[str, Any], output: str, out: Path | None) -> list[Path]:
    """Write a document as html, md, json or pdf; the files written (none: standard output). Markdown gets its charts beside it."""
    if output == "pdf":
        path = out or Path("incident.pdf")
        path.write_bytes(paper(plain))
        return [path]
    if output == "md" and out is not None:
        return _markdown(plain, out)
    made = (
        page(plain)
        if output == "html"
        else text(plain)
        if output == "md"
        else json.dumps(plain, indent=1, ensure_ascii=False) + "\n"
    )
    if out is None:
        sys.stdout.write(made)
        return []
    out.write_text(made, encoding="utf-8")
    return [out]


def _markdown(plain: Mapping[str, Any], out: Path) -> list[Path]:
    """Markdown with each chart as an SVG file in a folder of its name."""
    folder = out.with_suffix("")
    images, written = {}, [out]
    for chart in charts(plain):
        if not chart["svg"]:
            continue
        folder.mkdir(exist_ok=True)
        path = folder / (re.sub(r"[^a-z0-9]+", "-", chart["title"].lower()).strip("-") + ".svg")
        path.write_text(chart["svg"].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1), encoding="utf-8")
        images[chart["title"]] = f"{folder.name}/{path.name}"
        written.append(path)
    out.write_text(text(plain, images), encoding="utf-8")
    return written
