"""The machinery of tests/conftest.py and tests/run.py, tried on suites of a few lines."""

import importlib.util
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = Path(__file__).resolve().parent.parent
COMPARES = "def test_text(golden): golden('deep/er.txt', {text!r})"
MARKED = """
    import pytest
    @pytest.mark.e2e
    def test_browser(): pass
    @pytest.mark.prometheus
    def test_rules(): pass
    @pytest.mark.alertmanager
    def test_alerts(): pass
    def test_plain(): pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins would take most of the time
    pytester.makeini(
        "[pytest]\naddopts = --strict-markers --import-mode=importlib -p no:cacheprovider\n"
        "markers =\n  e2e: browser\n  prometheus: server\n  alertmanager: server\n"
    )
    pytester.makeconftest((TESTS / "conftest.py").read_text())
    return pytester


def programs(folder: Path, *names: str) -> str:
    """Make a PATH on which only these programs are."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_a_missing_golden_fails_and_says_how_to_write_it(suite: pytest.Pytester):
    suite.makepyfile(COMPARES.format(text="a\n"))
    result = suite.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*tests/golden/deep/er.txt does not exist*--update-golden*"])
    assert not (suite.path / "golden").exists()


def test_update_writes_the_golden_and_then_it_holds(suite: pytest.Pytester):
    suite.makepyfile(COMPARES.format(text="a\nµ\r\nlast"))
    suite.runpytest("--update-golden").assert_outcomes(passed=1)
    assert (suite.path / "golden" / "deep" / "er.txt").read_bytes() == "a\nµ\r\nlast".encode()
    suite.runpytest().assert_outcomes(passed=1)


def test_update_leaves_an_equal_golden_untouched(suite: pytest.Pytester):
    suite.makepyfile(COMPARES.format(text="a\n"))
    suite.runpytest("--update-golden")
    file = suite.path / "golden" / "deep" / "er.txt"
    written = file.stat().st_mtime_ns
    suite.runpytest("--update-golden").assert_outcomes(passed=1)
    assert file.stat().st_mtime_ns == written


def test_a_difference_is_shown_as_a_unified_diff(suite: pytest.Pytester):
    suite.makepyfile(COMPARES.format(text="one\n2\nthree\n"))
    suite.path.joinpath("golden", "deep").mkdir(parents=True)
    suite.path.joinpath("golden", "deep", "er.txt").write_text("one\ntwo\nthree\n")
    result = suite.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["--- tests/golden/deep/er.txt", "+++ now", " one", "-two", "+2", " three"])


@pytest.mark.parametrize(("was", "now", "shown"), [("a\n", "a", "*no newline at the end"), ("a\r\n", "a\n", "-a?r")])
def test_line_ends_count(suite: pytest.Pytester, was: str, now: str, shown: str):
    suite.makepyfile(COMPARES.format(text=now))
    suite.path.joinpath("golden", "deep").mkdir(parents=True)
    suite.path.joinpath("golden", "deep", "er.txt").write_bytes(was.encode())
    result = suite.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([shown])


def test_a_path_out_of_the_golden_folder_is_refused(suite: pytest.Pytester):
    suite.makepyfile("def test_text(golden): golden('../x.txt', 'a')")
    result = suite.runpytest("--update-golden")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*leads out of tests/golden*"])
    assert not (suite.path / "x.txt").exists()


def test_a_missing_program_skips_by_name_and_names_the_package(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", programs(suite.path / "bin", "prometheus"))
    suite.makepyfile(MARKED)
    result = suite.runpytest()
    result.assert_outcomes(passed=1, skipped=3)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "*= skipped =*",
            "*::test_browser: chromium is missing: apt-get install chromium",
            "*::test_rules: promtool is missing: apt-get install prometheus",
            "*::test_alerts: prometheus-alertmanager is missing: apt-get install prometheus-alertmanager",
        ]
    )


def test_present_programs_skip_nothing(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    names = ("chromium", "prometheus", "promtool", "prometheus-alertmanager")
    monkeypatch.setenv("PATH", programs(suite.path / "bin", *names))
    suite.makepyfile(MARKED)
    result = suite.runpytest("--require-programs")
    result.assert_outcomes(passed=4)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*= skipped*")


def test_required_programs_that_are_missing_fail(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", programs(suite.path / "bin"))
    suite.makepyfile(MARKED)
    result = suite.runpytest("--require-programs")
    result.assert_outcomes(passed=1, errors=3)
    result.stdout.fnmatch_lines(["*prometheus is missing: apt-get install prometheus*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("workers", ["0", "2"])
def test_any_skip_fails_the_run_where_programs_are_required(suite: pytest.Pytester, workers: str):
    suite.makepyfile(
        test_one="import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no mood')",
        test_module="import pytest\npytest.skip('no library', allow_module_level=True)",
        test_expected="import pytest\n@pytest.mark.xfail\ndef test_c(): assert 0",
    )
    spread = ("-p", "xdist", "-n", workers)
    assert suite.runpytest(*spread).ret == pytest.ExitCode.OK
    result = suite.runpytest(*spread, "--require-programs")
    result.assert_outcomes(passed=1, skipped=2, xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines_random(["*skipped: not allowed*", "test_one.py::test_b: no mood", "test_module.py: no library"])


def test_the_runner_installs_every_program_that_a_marker_needs(request: pytest.FixtureRequest):
    conftest = load(TESTS / "conftest.py")
    needed = {program for names in conftest.NEEDS.values() for program in names}
    assert needed == set(conftest.PACKAGES)
    declared = {line.split(":")[0] for line in request.config.getini("markers")}
    assert set(conftest.NEEDS) <= declared


def test_the_runner_lists_each_missing_package_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(TESTS))
    run = load(TESTS / "run.py")
    monkeypatch.setattr(run, "FONT", tmp_path / "none.ttf")
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", "prometheus", "chromium"))
    assert run.missing() == [
        "prometheus",
        "prometheus-alertmanager",
        "victoria-metrics",
        "default-jre-headless",
        "fonts-dejavu-core",
    ]


def test_the_runner_goes_on_where_nothing_can_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.syspath_prepend(str(TESTS))
    run = load(TESTS / "run.py")
    monkeypatch.setenv("PATH", programs(tmp_path / "bin"))
    started = []
    monkeypatch.setattr(run.os, "execve", lambda _, arguments, __: started.append(arguments[1:]))
    monkeypatch.setattr(run.os, "chdir", lambda _: None)
    run.main([])
    run.main(["-k", "x"])
    assert started == [["-m", "pytest", *run.SUITE], ["-m", "pytest", "-k", "x"]]
    assert "no apt-get here" in capsys.readouterr().out


def test_what_python_compiles_is_kept_in_a_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(TESTS))
    run = load(TESTS / "run.py")
    assert run.compiled({"A": "a"}) == {"A": "a"}  # beside the sources, as always
    kept = run.compiled({"A": "a", "PYTHONDONTWRITEBYTECODE": "1"})
    assert kept == {"A": "a", "PYTHONPYCACHEPREFIX": str(run.ROOT / ".pytest_cache" / "compiled")}


def load(file: Path):
    spec = importlib.util.spec_from_file_location(f"loaded_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
