"""Takes out of a report what names people, machines and keys: the same thing becomes the same word everywhere.

Hosts and addresses, request ids, model paths, e-mail addresses, and whatever looks like a key. User text was never stored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

_KEYLIKE: Final = re.compile(
    r"\b(?:sk|hf|ghp|xox[bp]|AKIA|eyJ)[-_A-Za-z0-9.]{12,}|\b(?=[A-Za-z0-9_-]*\d)(?=[A-Za-z0-9_-]*[A-Za-z])[A-Za-z0-9_-]{32,}\b"
)
_EMAIL: Final = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_IPV4: Final = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_IPV6: Final = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{0,4}(?![\w:])")
_URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)]+", re.IGNORECASE)
_PATH: Final = re.compile(r"(?<![\w/.])(?:\.{1,2}|~)?(?:/[\w.@+-]+){2,}/?")
_REQUEST: Final = re.compile(r"\b(?:chat)?cmpl-[\w-]{4,}")
_HOST: Final = re.compile(r"\b(?:[A-Za-z][\w-]*\.)+(?:local|internal|lan|corp|svc|cluster|com|net|org|io|ai|dev)\b(?:\.[\w-]+)*")
_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}:\d{2}")


@dataclass
class Redactor:
    """Replaces consistently; `replaced` tells what kinds and how many different ones."""

    words: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)  # whole strings given beforehand: text -> kind

    def word(self, text: str, kind: str) -> str:
        """The word that stands for a text."""
        if text not in self.words:
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            self.words[text] = f"{kind}-{self.kinds[kind]}"
        return self.words[text]

    def text(self, value: str) -> str:
        """A string with everything that names somebody replaced."""
        for known in sorted(self.known, key=len, reverse=True):
            if known in value:
                value = value.replace(known, self.word(known, self.known[known]))
        for kind, pattern in (
            ("url", _URL),
            ("email", _EMAIL),
            ("request", _REQUEST),
            ("key", _KEYLIKE),
            ("address", _IPV4),
            ("address", _IPV6),
            ("path", _PATH),
            ("host", _HOST),
        ):
            value = pattern.sub(partial(self._hidden, kind), value)
        return value

    def _hidden(self, kind: str, match: re.Match[str]) -> str:
        return match[0] if _CLOCK.fullmatch(match[0]) else self.word(match[0], kind)

    def value(self, value: Any) -> Any:
        """A plain value (as in a report's document) with all its strings, keys too, replaced."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            # a file's hash is how a report can be checked
            return {self.text(str(name)): item if name == "sha256" else self.value(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value


def redacted(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """A document without names, and how many different ones of each kind were replaced."""
    known: dict[str, str] = {}
    for engine in document.get("engines", []):
        host, _, port = str(engine["instance"]).rpartition(":")
        known.update(
            {str(engine["instance"]): "server", host: "host"} if host and port.isdigit() else {str(engine["instance"]): "server"}
        )
    models = document.get("window", {}).get("model") or []
    for model in [models] if isinstance(models, str) else models:
        known[str(model)] = "model"
    redactor = Redactor(known={text: kind for text, kind in known.items() if len(text) > 2})
    found: dict[str, Any] = redactor.value(document)
    return found, dict(redactor.kinds)
