"""Pages as Streamlit runs them, without what each AppTest does anew: reading what every installed package says of itself."""

import functools
from collections.abc import Iterator

import pytest
from streamlit.components.v2 import manifest_scanner


@pytest.fixture(scope="session", autouse=True)
def _packages_are_read_once() -> Iterator[None]:
    """Nothing is installed while the tests run; the look for packages with components takes three quarters of a small page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", functools.cache(manifest_scanner.scan_component_manifests))
        yield
