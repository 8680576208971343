"""Every member of every registry has the shape of its family, so that forgetting a part of one is impossible."""

import gzip
import io
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import duckdb
import pytest
from house.registries import FAMILIES, defines, last_name, members
from house.tree import ROOT

from analyzers.model import Batch
from app.collectors.formats import MAX_REJECTED

SECTIONS: Final = ("What it is", "Why it costs latency", "How it is computed", "What to try")
QUERIES: Final = ROOT / "queries"
SAMPLES: Final = ROOT / "sample_data" / "formats"
INCIDENTS: Final = ROOT / "sample_data" / "incidents"
HEAD: Final = 64 * 1024  # bytes that sniff sees
NOON: Final = 1764504000.0  # 2025-11-30 12:00 UTC, an instant for stamps without a year
JUNK: Final = (b"", b"\n", b"\0" * 100, bytes(range(256)), b"{}", b"[]\n", b"a,b\n1,2\n", b"hello world\n", b"\xff\xfe\x00{")


# -- all --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("registry", ["CHAIN", "FORMATS", "REPORTS", "PAGES"])
def test_the_registry_exists(registry: str):
    """The tests below walk what they find: an empty registry would pass them."""
    assert members(registry)


# -- formats ----------------------------------------------------------------------------------------------------------


def samples(module: ModuleType, kind: str) -> list[Path]:
    folder = SAMPLES / module.NAME / kind
    return sorted(file for file in folder.rglob("*") if file.is_file() and file.name not in {"manifest.toml", "__init__.py"})


def opened(file: Path, most: int = -1) -> bytes:
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
        return stream.read(most)


def schema() -> dict[str, set[str]]:
    """Return the columns of each table, as the migrations make them."""
    with duckdb.connect() as db:
        for file in sorted((QUERIES / "schema").glob("*.sql")):
            db.execute(file.read_text())
        found = db.execute("SELECT table_name, list(column_name) FROM information_schema.columns GROUP BY 1").fetchall()
    return {table: set(columns) for table, columns in found}


def rows(batch: Batch) -> int:
    return max((len(values) for values in batch.columns.values()), default=0)


def told(batches: list[Batch]) -> dict[str, Any]:
    """Return what the reader says of the whole file, in its last batch."""
    assert batches, "no batch for source_file"
    assert [batch.table for batch in batches].count("source_file") == 1
    assert batches[-1].table == "source_file"
    assert rows(batches[-1]) == 1
    return {name: values[0] for name, values in batches[-1].columns.items()}


def faults(batches: list[Batch], tables: dict[str, set[str]]) -> Iterator[str]:
    """Yield what is wrong with the batches of one file."""
    known: set[int] = set()
    for batch in batches:
        if batch.table not in tables:
            yield f"no table {batch.table}"
            continue
        columns = set(batch.columns)
        allowed = tables[batch.table] - {"file_id", "series_id"} | ({"series"} if batch.table in {"series", "sample"} else set())
        if columns - allowed:
            yield f"{batch.table} takes no {sorted(columns - allowed)}"
        if len({len(values) for values in batch.columns.values()}) > 1:
            yield f"columns of {batch.table} differ in length"
        if batch.table == "series":
            known |= {int(number) for number in batch.columns["series"]}
        if batch.table == "sample" and not {int(number) for number in batch.columns["series"]} <= known:
            yield "a sample comes before its series"
    fact = told(batches)
    kept = sum(rows(batch) for batch in batches if batch.table == "rejected_line")
    if kept > MAX_REJECTED:
        yield f"{kept} rejected lines are kept, at most {MAX_REJECTED} may be"
    if not kept <= fact["rejected"] <= fact["lines"]:
        yield f"{kept} rejected lines kept, {fact['rejected']} counted of {fact['lines']}"


def data_rows(batches: list[Batch]) -> int:
    return sum(rows(batch) for batch in batches if batch.table not in {"source_file", "rejected_line"})


def test_every_format_has_its_shape():
    for module in members("FORMATS"):
        assert (module.__doc__ or "").strip(), module.__name__
        assert last_name(module) == module.NAME
        assert callable(module.sniff)
        assert callable(module.read)


def test_every_format_has_good_and_bad_samples():
    bare = [f"{module.NAME}/{kind}" for module in members("FORMATS") for kind in ("good", "bad") if not samples(module, kind)]
    assert not bare, f"no file in sample_data/formats for {bare}"


def test_every_sample_is_described_in_its_manifest():
    wrong = []
    for module in members("FORMATS"):
        folder = SAMPLES / module.NAME
        if not (folder / "manifest.toml").exists():
            wrong.append(f"{module.NAME}: no manifest.toml")
            continue
        described = tomllib.loads((folder / "manifest.toml").read_text()).get("file", [])
        names = {entry["name"] for entry in described}
        files = {str(file.relative_to(folder)) for kind in ("good", "bad") for file in samples(module, kind)}
        wrong += [f"{module.NAME}/{name}: only the manifest or only the folder has it" for name in sorted(names ^ files)]
        wrong += [
            f"{module.NAME}/{entry['name']}: no {key}"
            for entry in described
            for key in ("source", "version", "what")
            if not entry.get(key)
        ]
    assert not wrong, "\n".join(wrong)


def test_every_sample_folder_belongs_to_a_format():
    names = {module.NAME for module in members("FORMATS")}
    assert {folder.name for folder in SAMPLES.glob("*/") if not folder.name.startswith("_")} <= names


def test_a_good_sample_is_claimed_by_its_own_format_only():
    wrong = []
    for module in members("FORMATS"):
        for file in samples(module, "good"):
            claims = [other.NAME for other in members("FORMATS") if other.sniff(opened(file, HEAD))]
            if claims != [module.NAME]:
                wrong.append(f"{file.relative_to(ROOT)}: claimed by {claims}")
    assert not wrong, "\n".join(wrong)


def test_a_bad_sample_is_claimed_by_one_format_at_most():
    wrong = []
    for module in members("FORMATS"):
        for file in samples(module, "bad"):
            claims = [other.NAME for other in members("FORMATS") if other.sniff(opened(file, HEAD))]
            if len(claims) > 1:
                wrong.append(f"{file.relative_to(ROOT)}: claimed by {claims}")
    assert not wrong, "\n".join(wrong)


def test_no_format_claims_what_is_none():
    texts = [*JUNK, *((ROOT / name).read_bytes()[:HEAD] for name in ("README.md", "LICENSE", "pyproject.toml"))]
    wrong = [f"{module.NAME} claims {text[:40]!r}" for module in members("FORMATS") for text in texts if module.sniff(text)]
    assert not wrong, "\n".join(wrong)


def test_a_good_sample_gives_rows_that_fit_the_schema():
    wrong, tables = [], schema()
    for module in members("FORMATS"):
        for file in samples(module, "good"):
            batches = list(module.read(io.BytesIO(opened(file)), NOON))
            found = [*faults(batches, tables), *([] if data_rows(batches) else ["no rows"])]
            wrong += [f"{file.relative_to(ROOT)}: {fault}" for fault in found]
    assert not wrong, "\n".join(wrong)


def test_a_bad_sample_is_read_without_an_error_and_its_lines_are_counted():
    wrong, tables = [], schema()
    for module in members("FORMATS"):
        for file in samples(module, "bad"):
            batches = list(module.read(io.BytesIO(opened(file)), NOON))
            wrong += [f"{file.relative_to(ROOT)}: {fault}" for fault in faults(batches, tables)]
            if not told(batches)["rejected"] and data_rows(batches):
                wrong.append(f"{file.relative_to(ROOT)}: gives rows and rejects nothing: what is bad about it?")
    assert not wrong, "\n".join(wrong)


def test_every_reader_reads_nothing_and_anything():
    """Neither an empty file, nor a cut one, nor another format's is an error."""
    wrong, tables = [], schema()
    others = [opened(samples(module, "good")[0])[:20_000] for module in members("FORMATS") if samples(module, "good")]
    for module in members("FORMATS"):
        cut = [opened(file)[: len(opened(file)) * 2 // 3] for file in samples(module, "good")]
        for text in [*JUNK, *others, *cut]:
            found = faults(list(module.read(io.BytesIO(text), NOON)), tables)
            wrong += [f"{module.NAME}, {text[:40]!r}: {fault}" for fault in found]
    assert not wrong, "\n".join(wrong)


# -- links, changes, sources, reports, pages --------------------------------------------------------------------------


def test_every_link_has_its_shape():
    for module in members("CHAIN"):
        assert module.LINK.name == last_name(module)
        starts = [re.search(rf"^{section}\b", module.__doc__ or "", re.MULTILINE) for section in SECTIONS]
        assert all(starts), (
            f"{module.__name__}: the docstring lacks {[s for s, at in zip(SECTIONS, starts, strict=True) if not at]}"
        )
        assert [at.start() for at in starts] == sorted(at.start() for at in starts), f"{module.__name__}: order of sections"


def test_every_link_has_its_evidence():
    evidence = {file.stem for file in (QUERIES / "evidence").glob("*.sql")}
    if members("CHAIN"):
        assert evidence == {last_name(module) for module in members("CHAIN")}


def test_every_link_has_its_incident():
    """One recording each, and a healthy one beside them."""
    links = {last_name(module) for module in members("CHAIN")}
    if links:
        assert {folder.name for folder in INCIDENTS.glob("*/") if not folder.name.startswith("_")} == {*links, "healthy"}


def test_every_incident_says_where_it_comes_from():
    wrong = []
    for folder in sorted(INCIDENTS.glob("[!_]*/")):
        manifest = tomllib.loads((folder / "manifest.toml").read_text())
        wrong += [
            f"{folder.name}: no {key}" for key in ("title", "kind", "vllm_version", "hardware", "flags") if not manifest.get(key)
        ]
        if manifest.get("kind") not in {"recorded", "simulated"}:
            wrong.append(f"{folder.name}: kind is neither recorded nor simulated")
    assert not wrong, "\n".join(wrong)


def test_every_file_of_an_incident_is_claimed_by_one_format():
    wrong = []
    for file in sorted(INCIDENTS.glob("[!_]*/*")):
        if file.name != "manifest.toml":
            claims = [module.NAME for module in members("FORMATS") if module.sniff(opened(file, HEAD))]
            if len(claims) != 1:
                wrong.append(f"{file.relative_to(ROOT)}: claimed by {claims}")
    assert not wrong, "\n".join(wrong)


def test_every_hypothesis_has_its_shape():
    for module in members("HYPOTHESES"):
        assert last_name(module) == module.NAME
        assert hasattr(module, "SINCE"), module.__name__
        assert callable(module.propose)


def test_every_report_has_its_shape():
    for module in members("REPORTS"):
        assert (module.__doc__ or "").strip(), module.__name__
        assert re.fullmatch(r"\.[a-z.]+", module.SUFFIX), module.__name__
        assert re.fullmatch(r"[a-z]+/[a-z0-9.+-]+(; ?[a-z]+=[\w-]+)?", module.MEDIA_TYPE), module.__name__
        assert callable(module.render)
    suffixes = [module.SUFFIX for module in members("REPORTS")]
    assert len(suffixes) == len(set(suffixes))


def test_every_page_has_its_shape():
    for module in members("PAGES"):
        assert module.TITLE, module.__name__
        assert callable(module.page)
    titles = [module.TITLE for module in members("PAGES")]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("registry", ["HYPOTHESES", "SOURCES", "PAGES"])
def test_every_other_member_says_what_it_is(registry: str):
    assert all((module.__doc__ or "").strip() for module in members(registry))


@pytest.mark.parametrize("registry", FAMILIES)
def test_every_member_is_registered_once(registry: str):
    names = [module.__name__ for module in members(registry)]
    assert len(names) == len(set(names))
    package, mark = FAMILIES[registry]
    folder = ROOT.joinpath(*package.split("."))
    files = [file for file in sorted(folder.glob("*.py")) if not file.name.startswith("_") and defines(file, mark)]
    if names:
        assert {f"{package}.{file.stem}" for file in files} == set(names)


# -- SQL --------------------------------------------------------------------------------------------------------------


def headers() -> Iterator[tuple[Path, str]]:
    for file in sorted(QUERIES.rglob("*.sql")):
        yield file, re.match(r"(?:--.*\n)*", file.read_text())[0]


def test_every_sql_file_says_what_one_row_is():
    """A migration makes several tables: each says it above its CREATE."""
    bare = []
    for file, header in headers():
        if file.parent.name != "schema" and not re.search(r"\brows?\b", header, re.IGNORECASE):
            bare.append(str(file.relative_to(ROOT)))
        if not header:
            bare.append(str(file.relative_to(ROOT)))
    assert not bare, f"these start without a `--` header that says what one row is: {bare}"


def test_every_table_says_what_one_row_is():
    bare = []
    for file in sorted((QUERIES / "schema").glob("*.sql")):
        lines = file.read_text().splitlines()
        for at, line in enumerate(lines):
            if line.startswith("CREATE TABLE"):
                above = at - 1
                while above >= 0 and lines[above].startswith(("CREATE SEQUENCE", "--")):
                    above -= 1
                if not re.search(r"-- .*\brow\b", "\n".join(lines[above + 1 : at])):
                    bare.append(line)
    assert not bare, bare


def test_migrations_are_numbered_without_gaps():
    names = sorted(file.name for file in (QUERIES / "schema").glob("*.sql"))
    assert [re.match(r"(\d{4})_[a-z0-9_]+\.sql$", name)[1] for name in names] == [f"{at + 1:04}" for at in range(len(names))]


def test_views_are_applied_in_the_order_of_their_names():
    wrong = [file.name for file in (QUERIES / "views").glob("*.sql") if not re.fullmatch(r"\d\d_[a-z0-9_]+\.sql", file.name)]
    assert not wrong


def test_a_view_file_is_named_after_what_it_makes():
    wrong = []
    for file in sorted((QUERIES / "views").glob("*.sql")):
        made = re.findall(
            r"CREATE (?:OR REPLACE )?(?:TEMP(?:ORARY)? )?(?:VIEW|MACRO|TABLE) (\w+)", file.read_text(), re.IGNORECASE
        )
        if not any(name.startswith(file.stem[3:]) for name in made):
            wrong.append(f"{file.name} makes {made}")
    assert not wrong, "\n".join(wrong)
