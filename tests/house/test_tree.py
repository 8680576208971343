"""What may lie in the repository, and what its files may say."""

import gzip
import io
import itertools
import os
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import pytest
from house.tree import ROOT, tracked

TOP: Final = {
    *("pyproject.toml", "README.md", "LICENSE", ".gitignore", ".ci"),
    *("app", "analyzers", "deploy", "queries", "sample_data", "tests"),
}
# In two pieces each, so that this file does not name them.
REGISTRIES: Final = [
    "".join(pieces).encode()
    for pieces in (
        ("pypi", ".org"),
        ("python", "hosted.org"),
        ("npm", "js.org"),
        ("yarn", "pkg.com"),
        ("ana", "conda.org"),
        ("crates", ".io"),
        ("proxy.go", "lang.org"),
        ("deb.deb", "ian.org"),
    )
]
ROOTS: Final = (b"/work", b"/root", b"/farm")
MACHINE: Final = re.compile(rb"(?<![\w.~-])(?:" + b"|".join(ROOTS) + rb")/")
NEWLINE: Final = b"\n"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())


def contents(file: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the bytes of a file, and those of what is packed inside."""
    yield file, data
    if file.endswith((".tar.gz", ".tgz", ".tar")):
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                if member.isfile():
                    yield from contents(f"{file}/{member.name}", archive.extractfile(member).read())
    elif file.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                yield from contents(f"{file}/{name}", archive.read(name))
    elif file.endswith(".gz"):
        yield from contents(file.removesuffix(".gz"), gzip.decompress(data))


def readable() -> Iterator[tuple[str, bytes]]:
    for file in tracked():
        try:
            yield from contents(str(file), (ROOT / file).read_bytes())
        except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError):
            continue  # a sample of a broken archive: its own bytes were yielded


def requirements() -> list[str]:
    project = PROJECT["project"]
    groups = [*project.get("optional-dependencies", {}).values(), *PROJECT["dependency-groups"].values()]
    return [*project["dependencies"], *itertools.chain.from_iterable(groups)]


def distribution(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def test_only_these_entries_lie_at_the_top():
    assert {file.parts[0] for file in tracked()} <= TOP


def test_no_lock_file_is_tracked():
    assert not [file for file in tracked() if file.name == "uv.lock"]


def test_no_file_names_a_package_registry():
    wrong = [f"{name}: {host.decode()}" for name, data in readable() for host in REGISTRIES if host in data]
    assert not wrong, "\n".join(wrong)


def test_no_file_holds_a_path_of_one_machine():
    wrong = [
        f"{name}:{len(data[: found.start()].split(NEWLINE))}: {data[found.start() : found.start() + 60]!r}"
        for name, data in readable()
        if any(root + b"/" in data for root in ROOTS)  # the expression alone takes seconds on our recordings
        if (found := MACHINE.search(data))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("root", ROOTS)
def test_machine_paths_are_recognised(root: bytes):
    path = root + b"/x"
    assert all(MACHINE.search(before + path) for before in (b"", b" ", b'"', b"=", b"(", b"file://", b"\n"))
    assert not any(MACHINE.search(before + path) for before in (b"a", b"~", b"..", b"/tmp"))


def test_packed_files_are_read(tmp_path: Path):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("log.gz", gzip.compress(b"text"))
    assert [name for name, _ in contents("a.zip", inner.getvalue())] == ["a.zip", "a.zip/log.gz", "a.zip/log"]
    (tmp_path / "log").write_bytes(b"text")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(tmp_path / "log", "log")
    assert list(contents("a.tar.gz", packed.getvalue()))[1:] == [("a.tar.gz/log", b"text")]


def test_an_unpacked_archive_has_the_same_files(tmp_path: Path):
    for name in (".gitignore", "app/cli.py", "app/__pycache__/cli.pyc", ".venv/bin/python", "uv.lock"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / ".gitignore").read_bytes() if name == ".gitignore" else b"")
    assert tracked(tmp_path) == [Path(".gitignore"), Path("app/cli.py")]


def test_every_direct_dependency_is_pinned_to_what_is_installed():
    pins = dict(pin.split("==") for pin in PROJECT["tool"]["uv"]["constraint-dependencies"])
    wrong = []
    for name in sorted({distribution(requirement) for requirement in requirements()} | set(pins)):
        try:
            installed = version(name)
        except PackageNotFoundError:
            installed = None  # of an extra, or of another platform
        if name not in pins:
            wrong.append(f"{name} is not pinned, installed is {installed}")
        elif installed not in {None, pins[name]}:
            wrong.append(f"{name} is pinned to {pins[name]}, installed is {installed}")
    assert not wrong, "\n".join(wrong)


def test_every_dependency_of_the_program_has_a_reason():
    bare, inside = [], False
    for line in (ROOT / "pyproject.toml").read_text().splitlines():
        if re.match(r"dependencies = \[|\[project.optional-dependencies\]", line):
            inside = True
        elif line.startswith("]") or re.match(r"\[(?!project.optional)", line):
            inside = False
        elif inside and '"' in line and not re.search(r'"[^"]+".*,\s*# \S', line):
            bare.append(line)
    assert not bare, "\n".join(bare)


def test_the_ci_script_can_be_run():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_tests_are_no_package():
    """An `__init__.py` in tests/app would hide app from the tests."""
    assert not [file for file in tracked() if file.parts[0] == "tests" and file.name == "__init__.py"]
