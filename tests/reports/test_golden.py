"""Every sample incident in every format: what the reports say, to the letter, and that each format says it."""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import jsonschema
import pytest
from recordings import INCIDENTS, recorded
from reports.made import as_html, commonmark, made, outline, paper_words, pdf_pages, shortened, squeezed, words

from app.reporting import drawn, schema_text

NAMES: Final = recorded(INCIDENTS)
PAPER: Final = ("healthy", "output", "prefix_cache_miss")  # nothing limits; refusals; two engines and the most evidence
VERSIONS: Final = re.compile(r"weaklink \S+, python \S+, duckdb \S+")
HASH: Final = re.compile(r"(incident-data\.zip, SHA-256 )[0-9a-f]{64}")


@cache
def validator() -> Any:
    schema = json.loads(schema_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", NAMES)
def test_an_incident_in_every_format(name: str, golden: Callable[[str, str], None]):
    plain = made(name).plain
    document = json.loads(drawn(plain, "json"))
    assert [f"{list(error.absolute_path)}: {error.message[:200]}" for error in validator().iter_errors(document)] == []
    short = shortened(document)
    short["data"] |= {"sha256": "", "bytes": 0}  # of packed bytes, which differ from one zlib to the next
    golden(f"{name}/report.json", json.dumps(short, indent=1, ensure_ascii=False) + "\n")
    text = drawn(plain, "md").decode()
    golden(f"{name}/report.md", HASH.sub(r"\1...", VERSIONS.sub("weaklink, python, duckdb", text)))
    golden(f"{name}/report.html.txt", outline(as_html(name)))
    rendered = squeezed("".join(words(commonmark(text))))
    told = [
        squeezed(line)
        for t in plain["targets"].values()
        if t
        for line in (*t["conditions"], *(r["measure"] for r in t["cannot_determine"]))
    ]
    assert [line for line in told if line not in rendered] == []  # what the page says stands in the Markdown, as rendered


@pytest.mark.parametrize("name", PAPER)
def test_what_the_page_says_stands_on_paper(name: str):
    plain = made(name).plain
    paper = squeezed("".join(pdf_pages(drawn(plain, "pdf"))))
    said = {squeezed(one) for one in paper_words(plain) if len(squeezed(one)) > 30}
    assert said
    assert [one for one in said if one not in paper] == []


@pytest.mark.parametrize("name", NAMES)
def test_its_data_give_the_same_judgement(name: str):
    """`report` loads the data into an empty store, judges them, and says what differs."""
    assert made(name).plain["data"]["says"] == "loaded into an empty store it gives the same judgement"


def test_the_schema_refuses_what_is_no_report():
    plain = json.loads(drawn(made("slots").plain, "json"))
    assert validator().is_valid(plain)
    for wrong in (
        {**plain, "colour": 1},
        {key: value for key, value in plain.items() if key != "impact"},
        {**plain, "schema": "weaklink incident 2"},
    ):
        assert not validator().is_valid(wrong)
    plain["targets"]["ttft"]["parts"][0]["seconds"] = "0 s"
    assert not validator().is_valid(plain)
