"""The README says what the code does: its tables are made from it, its commands are those that CI runs."""

import re

import pytest
from house.readme_tables import BLOCK, TABLES, filled, table
from house.tree import ROOT

README = ROOT / "README.md"


def test_its_tables_are_those_of_the_code(update_golden: bool):
    was = README.read_text()
    now = filled(was)
    if update_golden and now != was:
        README.write_text(now)
        return
    assert was == now, "README.md is stale: run pytest --update-golden"


def test_each_table_has_its_place():
    assert sorted(block[2] for block in BLOCK.finditer(README.read_text())) == sorted(TABLES)


def test_no_marker_is_left_open():
    text = README.read_text()
    assert text.count("<!-- table:") == text.count("<!-- end -->") == len(BLOCK.findall(text))


def test_the_ci_script_runs_its_test_line():
    lines = re.findall(r"^pip install uv && uv run tests/run\.py$", README.read_text(), re.MULTILINE)
    assert len(lines) == 1
    assert lines[0] in (ROOT / ".ci" / "run").read_text()


def test_files_that_it_names_exist():
    """Every link without a scheme leads to a file."""
    wrong = [
        target
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", README.read_text())
        if "://" not in target and not (ROOT / target).exists()
    ]
    assert not wrong, wrong


def test_a_table_without_rows_is_absent():
    assert not table(("a", "b"), [])


def test_a_bar_in_a_text_does_not_end_its_cell():
    assert table(("a", "b"), [("x", "y | z")]) == "| a | b |\n|---|---|\n| `x` | y \\| z |\n"


def test_filling_replaces_only_what_is_between_the_markers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TABLES, "links", lambda: "new\n")
    text = "a\n<!-- table: links -->\nold\nold\n<!-- end -->\nb\n<!-- table: links -->\n<!-- end -->\n"
    assert filled(text) == "a\n<!-- table: links -->\nnew\n<!-- end -->\nb\n<!-- table: links -->\nnew\n<!-- end -->\n"
    assert filled(filled(text)) == filled(text)
