"""Flags that are printed exist in the version that was detected: over 0.10, 0.16, 0.24 and 0.33, from the sources of these."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from analyzers import versions
from analyzers.case import Case
from analyzers.hypotheses import HYPOTHESES, proposed
from app.experiments.load import vllm as bench
from app.experiments.plan import script

from .test_advice import HELPS, built

SOURCES: Final = tomllib.loads((Path(__file__).resolve().parent / "flags.toml").read_text())
VERSIONS: Final = tuple(SOURCES["serve"])
FLAG: Final = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")


def at(version: str | None, name: str) -> Case:
    """A scene on another version."""
    found = built(next(scene for scene in HELPS if scene.name == name))
    engines = tuple(replace(e, version=version) for e in found.window.engines)
    return replace(found, window=replace(found.window, engines=engines))


def known(kind: str, version: str) -> set[str]:
    names = set(SOURCES[kind][version])
    return names | {f"no-{name}" for name in names}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [scene.name for scene in HELPS])
def test_printed_flags_exist(version: str, name: str):
    for one in proposed(at(version, name)):
        for flag in one.flags:
            assert set(FLAG.findall(flag)) <= known("serve", version), f"{one.name} on {version}: {flag}"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_agrees_with_the_sources(version: str):
    numbers = versions.parsed(version)
    wrong = [flag for flag in versions.FLAGS if versions.has(numbers, flag) != (flag in SOURCES["serve"][version])]
    assert not wrong


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["more_slots", "kv_offload", "prefix_routing"])
def test_the_load_command_has_flags_of_its_version(version: str, name: str):
    found = at(version, name)
    text = bench(found, "m").partition('"$1.json"')[0]
    assert set(FLAG.findall(text)) <= known("bench", version)
    if "prefix_repetition" in text:
        assert version != "0.10.0"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_script_serves_with_flags_of_its_version(version: str):
    for name in ("more_slots", "kv_memory", "eplb", "speculative"):
        found = at(version, name)
        for one in proposed(found):
            served = "".join(re.findall(r"exec vllm serve.*?\n}", script(found, one), re.DOTALL))
            assert set(FLAG.findall(re.sub(r"'[^']*'", "", served))) <= known("serve", version) | {"host", "port"}


def test_every_flag_of_the_table_is_known_to_a_version():
    every = {flag for version in VERSIONS for flag in SOURCES["serve"][version]}
    assert set(versions.FLAGS) <= every


def test_since_is_the_version_of_a_flag():
    for module in HYPOTHESES:
        assert module.SINCE is None or module.SINCE in {first for first, _ in versions.FLAGS.values()}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.24.0", (0, 24, 0)), ("0.10.2rc1", (0, 10, 2)), ("0.33.1.dev7+g1", (0, 33, 1)), (None, None), ("main", None)],
)
def test_versions_are_read(text: str | None, numbers: tuple[int, ...] | None):
    assert versions.parsed(text) == numbers


def test_where_the_version_is_unknown_that_is_said():
    found = proposed(at(None, "kv_memory"))
    assert any("the vLLM version is unknown" in c for one in found for c in one.conditions)
    assert all("version is unknown" not in c for one in proposed(at("0.33.0", "kv_memory")) for c in one.conditions)


def test_flags_of_old_versions_have_their_old_names():
    def flags(version: str, name: str, scene: str | None = None) -> str:
        return " ".join(next(one for one in proposed(at(version, scene or name)) if one.name == name).flags)

    assert "--cuda-graph-sizes" in flags("0.10.0", "graph_sizes")
    assert "--max-cudagraph-capture-size" in flags("0.16.0", "graph_sizes")
    assert "LMCacheConnectorV1" in flags("0.10.0", "kv_offload")
    assert "--kv-offloading-size" in flags("0.24.0", "kv_offload")
    assert "--eplb-step-interval" in flags("0.10.0", "eplb")
    assert "--eplb-config" in flags("0.24.0", "eplb")
    assert "prefill_interval" not in {
        one.name for one in proposed(at("0.24.0", "prefill_interval"))
    }  # there it is for ranks only
