"""The pages, in the order of the navigation: one module each, with TITLE and `page(view)`."""

from types import ModuleType
from typing import Final

from app.ui.screens import (
    alerts,
    experiments,
    hypotheses,
    kv_cache,
    link,
    overview,
    ranks,
    reports,
    requests,
    timeline,
    upload,
    workload,
)

PAGES: Final[tuple[ModuleType, ...]] = (
    *(overview, link, timeline, requests, kv_cache, ranks, workload),
    *(hypotheses, experiments, alerts, reports, upload),
)
