"""What every test may use: golden files, and a check that the programs a test drives are there.

`golden(path, text)` compares a whole output with tests/golden/<path>; `pytest --update-golden` writes the files anew.

A test marked e2e, prometheus, alertmanager, victoria or validator drives a real program. Where that program is missing the test is skipped by
name, with the package that holds it; `--require-programs` makes it a failure, and any skip at all fails the run then.
"""

import difflib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import hypothesis
import pytest

hypothesis.settings.register_profile("busy", deadline=None)  # seconds of one example say more of the machine than of the code
hypothesis.settings.load_profile("busy")

GOLDEN: Final = Path(__file__).resolve().parent / "golden"

NEEDS: Final = {  # marker -> programs that a test with it starts
    "e2e": ("chromium",),
    "prometheus": ("prometheus", "promtool"),
    "alertmanager": ("prometheus-alertmanager",),  # Debian's name for it
    "victoria": ("victoria-metrics",),
    "validator": ("java",),
}
PACKAGES: Final = {  # program -> Debian package
    "chromium": "chromium",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "victoria-metrics": "victoria-metrics",
    "java": "default-jre-headless",
}


LONG: Final = (  # begun first, the longest before the others, so that no worker is left alone with one of them at the end
    "ui/test_pages.py",
    "e2e/test_pages.py",
    "reports/test_golden.py",
    "accuracy/test_accuracy.py",
    "reports/test_html.py",
    "hypotheses/test_commands.py",
    "collectors/sources/test_collecting.py",
    "e2e/test_dashboard.py",
    "reports/test_data.py",
    "hypotheses/test_advice.py",
    "alerts/test_evaluate.py",
    "alerts/test_incidents.py",
    "e2e/test_live.py",
    "test_access.py",
    "test_crash.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("weaklink")
    group.addoption("--update-golden", action="store_true", help="write tests/golden and README tables instead of comparing")
    group.addoption("--vllm", metavar="PATH", help="the vllm command that tests marked `live` start (default: that of PATH)")
    group.addoption("--require-programs", action="store_true", help="a missing program fails its test, a skip fails the run")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, programs in NEEDS.items():
        if item.get_closest_marker(marker) is None:
            continue
        for program in programs:
            if shutil.which(program) is None:
                reason = f"{program} is missing: apt-get install {PACKAGES[program]}"
                if item.config.getoption("--require-programs"):
                    pytest.fail(reason, pytrace=False)
                pytest.skip(reason)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    turn = {GOLDEN.parent / name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: turn.get(item.path, len(LONG)))


def skips(config: pytest.Config) -> list[str]:
    """One line for each skipped test or module, `name: reason`; of all workers where there are several."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a worker: its reports are counted where they arrive
        return []
    lines = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        lines.append(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")
    return list(dict.fromkeys(lines))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--require-programs") and session.exitstatus == pytest.ExitCode.OK and skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = skips(config)
    if not lines:
        return
    required = config.getoption("--require-programs")
    terminalreporter.section("skipped: not allowed with --require-programs, the run fails" if required else "skipped")
    for line in lines:
        terminalreporter.line(line)


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Tell whether to write what is generated instead of comparing it."""
    return request.config.getoption("--update-golden")


@pytest.fixture(scope="session")
def golden(update_golden: bool) -> Callable[[str, str], None]:
    """`golden(path, text)`: `text` is, to the byte, what tests/golden/<path> holds."""

    def compare(path: str, text: str) -> None:
        __tracebackhide__ = True
        file = (GOLDEN / path).resolve()
        if not file.is_relative_to(GOLDEN):
            raise ValueError(f"{path!r} leads out of tests/golden")
        if update_golden:
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists() or file.read_bytes() != text.encode():
                file.write_bytes(text.encode())
            return
        if not file.exists():
            pytest.fail(f"tests/golden/{path} does not exist: run pytest --update-golden, read it, commit it", pytrace=False)
        was = file.read_bytes().decode()
        if was != text:
            pytest.fail(difference(path, was, text), pytrace=False)

    return compare


def difference(path: str, was: str, now: str) -> str:
    """Return a unified diff that also shows a missing last newline and a changed line ending."""
    shown = [
        [line.replace("\r", "\\r") if line.endswith("\n") else f"{line}\n\\ no newline at the end\n" for line in lines]
        for lines in (was.splitlines(keepends=True), now.splitlines(keepends=True))
    ]
    diff = difflib.unified_diff(*shown, fromfile=f"tests/golden/{path}", tofile="now")
    return f"tests/golden/{path} differs (run pytest --update-golden if the new text is right)\n{''.join(diff)}"
