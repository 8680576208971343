"""What may stand in a window's data that is passed on: column by column, so that nothing gets out that nobody thought of."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from app.redact import Redactor

_ENGINE: Final = re.compile(r"\d{1,4}")
_STATES: Final = {
    "ok",
    "error",
    "abort",
    "aborted",
    "timeout",
    "cancelled",
    "stop",
    "length",
    "tool_calls",
    "content_filter",
    "repetition",
}
_ROUTE: Final = re.compile(
    r"/(?:metrics|health|ping|version|load|tokenize|detokenize|reset_prefix_cache|v1/(?:models|completions|chat/completions|embeddings|responses|messages|score|rerank))?"
)
LABELS: Final = frozenset(  # labels whose values are vLLM's own words
    {"le", "quantile", "finished_reason", "source", "reason", "position", "method", "status", "implementation", "major", "minor", "patchlevel",
     "block_size", "cache_dtype", "generation", "transfer_type", "direction", "medium", "tier", "connector", "phase", "sleep_state", "kv_cache_dtype",
     "prefix_caching_hash_algo", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "mamba_cache_mode"}
)  # fmt: skip
SERVER_KINDS: Final = {
    "instance": "server",
    "pid": "process",
    "service": "service",
    "request_id": "request",
    "trace_id": "trace",
    "model_name": "model",
}
_FIXED: Final = ("text", "kernel", "mode", "stats", "device", "reason")  # phrases that the log's reader knows; still searched


class Words:
    """Passes rows on: as they are, or with every name replaced by its word."""

    def __init__(self, redactor: Redactor | None) -> None:
        self.redactor = redactor
        self._columns: Mapping[tuple[str, str], Callable[[Any], Any]] = {
            ("scrape", "instance"): self._as("server"), ("request", "status"): _state, ("request", "finish_reason"): _state,
            **{("request", name): self._as(kind) for name, kind in SERVER_KINDS.items() if name != "model_name"},
            ("series", "instance"): self._as("server"), ("series", "model_name"): self._as("model"), ("series", "engine"): self._engine,
            ("stat", "engine"): self._engine, ("step", "engine"): self._engine, ("event", "engine"): self._engine,
            ("kv_event", "engine"): self._engine, ("kv_event", "instance"): self._as("server"), ("kv_event", "source"): self._as("topic"),
            ("kv_event", "salt"): self._as("salt"), ("kv_event", "block_hashes"): self._hashes, ("kv_event", "medium"): self._text,
        }  # fmt: skip

    def file(self, name: str) -> str:
        """The name of a file in the bundle."""
        return name if self.redactor is None else self.redactor.word(name, "file")

    def source(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """What was read, for the first line of a file."""
        said = {
            name: found[name] for name in ("name", "format", "sha256", "lines", "rejected", "instance", "pid", "clock_offset_s")
        }
        if self.redactor is not None:
            said["name"] = self.file(said["name"])
            said |= {name: self._as(SERVER_KINDS[name])(said[name]) for name in ("instance", "pid")}
        return {name: value for name, value in said.items() if value is not None}

    def columns(self, table: str, columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Columns of one table; those that are unknown throughout are left out, JSON texts become objects."""
        out: dict[str, list[Any]] = {}
        for name, values in columns.items():
            if all(value is None for value in values):
                continue
            if (table, name) in {("series", "labels"), ("event", "fields")}:
                found = [json.loads(value) for value in values]
                out[name] = [self._labels(one) for one in found] if table == "series" else self._events(found, columns["kind"])
            elif self.redactor is not None and (replace := self._columns.get((table, name))) is not None:
                out[name] = [None if value is None else replace(value) for value in values]
            else:
                out[name] = list(values)
        return out

    def _as(self, kind: str) -> Callable[[Any], Any]:
        return lambda value: None if value is None or self.redactor is None else self.redactor.word(str(value), kind) or None

    def _engine(self, value: str) -> str:
        return value if self.redactor is None or _ENGINE.fullmatch(value) else self.redactor.word(value, "engine")

    def _text(self, value: str) -> str:
        return value if self.redactor is None else self.redactor.text(value)

    def _hashes(self, value: Sequence[str]) -> list[str]:
        return [one if self.redactor is None else self.redactor.word(one, "block") for one in value]

    def _labels(self, found: Mapping[str, Any]) -> dict[str, str]:
        if self.redactor is None:
            return {name: str(value) for name, value in found.items()}
        return {name: self.redactor.label(name, str(value), LABELS) for name, value in found.items()}

    def _events(self, found: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> list[Any]:
        if self.redactor is None:
            return list(found)
        return [self._event(kind, one) for kind, one in zip(kinds, found, strict=True)]

    def _event(self, kind: str, fields: Mapping[str, Any]) -> Any:
        assert self.redactor is not None
        if kind in {"args", "config", "model_config"}:
            return self.redactor.flags(fields)
        if kind == "access":
            return {**fields, "path": self._path(str(fields.get("path", "")))}
        return {name: self._field(kind, name, value) for name, value in fields.items()}

    def _path(self, path: str) -> str:
        assert self.redactor is not None
        return path if _ROUTE.fullmatch(path) else self.redactor.word(path, "path")

    def _field(self, kind: str, name: str, value: Any) -> Any:
        assert self.redactor is not None
        if isinstance(value, str) and (name in _FIXED or (kind, name) == ("device", "name")):
            return self.redactor.text(value)
        return self.redactor.argument(name, value)


def _state(value: str) -> str:
    return value if value in _STATES else "error"
