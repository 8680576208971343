"""How bytes are read: one module per format.

Each module has a docstring (what writes it, which versions, which traps), NAME, `sniff(head)` and `read(...)`:

    NAME: str
    def sniff(head: bytes) -> bool
        Is this ours? `head` is the first 64 KiB. At most one format says yes to a file.
    def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]
        Batches for the tables of queries/schema, without file_id. `reference_ts` is an instant near the recording, from
        which a stamp without a year takes its year. Never raises on content: a bad line becomes a row of "rejected_line"
        (at most MAX_REJECTED of them; all are counted). The last batch is for "source_file" with one row: lines,
        rejected and, where the file says so, instance, pid, clock_offset_s.

Series: a batch for "series" gives each new series a number (column `series`, unique in the file); "sample" batches use
it in column `series` in place of series_id.
"""

from types import ModuleType
from typing import Final

MAX_REJECTED: Final = 100  # rows kept a file; a wrong file would otherwise fill the store with reasons

# below MAX_REJECTED, which the readers import from here
from app.collectors.formats import (  # noqa: E402
    aiperf,
    aiperf_server,
    bench_result,
    bench_text,
    guidellm,
    kv_events,
    otlp_spans,
    prometheus_text,
    request_lines,
    rows,
    vllm_command,
    vllm_log,
)

FORMATS: Final[tuple[ModuleType, ...]] = (
    prometheus_text,
    vllm_log,
    otlp_spans,
    request_lines,
    kv_events,
    vllm_command,
    bench_result,
    bench_text,
    guidellm,
    aiperf,
    aiperf_server,
    rows,
)
