"""What every test of the analyzers stands on: calibrated widths that do not change when the table is made anew."""

import pytest
import recordings

from analyzers import ranges
from analyzers.calibration import SPREAD

INACTIVE, ACTIVE = 0.02, 0.2  # shares of the measured value, and of the part


@pytest.fixture(autouse=True)
def _calibrated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the same half-widths for all links: the table is measured by tests/accuracy and must not decide the rules' tests."""
    if (
        getattr(request.module, "judged", None) is recordings.judged
    ):  # what is judged there is kept for the whole run, whose goldens are of the real table
        return
    table = {
        method: {level: dict.fromkeys(links, (INACTIVE, 1 - ACTIVE, 1 + ACTIVE)) for level, links in levels.items()}
        for method, levels in SPREAD.items()
    }
    monkeypatch.setattr(ranges, "SPREAD", table)
