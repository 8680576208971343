"""Reports of the sample incidents, each made once a process; and what a page, a PDF and a Markdown text say, in plain words."""

import functools
import html
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any, Final

import pypdfium2
from markdown_it import MarkdownIt
from recordings import INCIDENTS, loaded

from app.incident.kept import Asked
from app.reporting import Report, drawn, report
from app.reports.sheet import page

SLO: Final = {"ttft": 1.0, "tpot": 0.03}
FOOT: Final = 48  # points from the edge of the paper: the page's number
ENDLESS: Final = {"br", "meta", "link", "input", "img", "hr"}


@functools.cache
def made(name: str) -> Report:
    """Return the report of a sample incident, redacted, with its data."""
    store, _ = loaded(INCIDENTS / name)
    return report(store, Asked(slo=SLO), named=[name], with_data="incident-data.zip")


@functools.cache
def as_html(name: str) -> str:
    return drawn(made(name).plain, "html").decode()


def shortened(value: Any) -> Any:
    """A document with its points counted instead of listed, without what differs from machine to machine, and nothing twice."""
    if isinstance(value, dict):
        if len(value.get("engines", ())) == 1 and "targets" in value and value["engines"][0]["targets"] == value["targets"]:
            value = {**value, "engines": [{**value["engines"][0], "targets": "as those of all engines"}]}
        out = {key: shortened(item) for key, item in value.items()}
        return {**out, "versions": sorted(value["versions"])} if "versions" in value else out
    if isinstance(value, list):
        points = len(value) > 20 and all(item is None or isinstance(item, int | float) for item in value)
        return _points(value) if points else [shortened(item) for item in value]
    return value


def _points(values: list[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    return {"points": len(values), "known": len(known), "least": min(known, default=None), "most": max(known, default=None)}


class Outline(HTMLParser):
    """The headings of a page, and what stands below each: how many of which element, and the words."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.sections: list[tuple[str, Counter[str]]] = [("head", Counter())]
        self.words: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sections[-1][1][tag] += 1
        if tag not in ENDLESS:
            self.open.append(tag)
        if tag in {"h1", "h2", "h3"}:
            self.sections.append((f"{tag} ", Counter()))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"h1", "h2", "h3"}:
            self.sections[-1] = (self.sections[-1][0] + data, self.sections[-1][1])
        if data.strip() and not {"script", "style", "title"} & set(self.open):
            self.words += [" ".join(line.split()) for line in data.splitlines() if line.strip()]


def outline(text: str) -> str:
    """The digest of a page: a line a heading, with the elements below it."""
    parser = Outline()
    parser.feed(text)
    counted = ("p", "li", "tr", "svg", "polyline", "pre", "details")
    return "".join(
        f"{title}: {', '.join(f'{count[tag]} {tag}' for tag in counted if count[tag]) or 'nothing'}\n"
        for title, count in parser.sections[1:]
    )


def words(text: str) -> list[str]:
    """The texts of a page in their order."""
    parser = Outline()
    parser.feed(text)
    return parser.words


def paper_words(plain: dict[str, Any]) -> list[str]:
    """The texts that a PDF should hold."""
    return words(page(plain, still=True))


def pdf_pages(data: bytes) -> list[str]:
    document = pypdfium2.PdfDocument(data)
    try:
        return [document[at].get_textpage().get_text_bounded(bottom=FOOT) for at in range(len(document))]
    finally:
        document.close()


def squeezed(text: str) -> str:
    """Letters only: where a line ends on paper is the font's business."""
    return re.sub(r"[\s\u00ad\ufffe\u200b]+", "", html.unescape(text))


def commonmark(text: str) -> str:
    """Markdown as GitHub reads it: CommonMark with tables."""
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
