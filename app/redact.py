"""Takes out of a report and of its data what names people, machines and keys: the same thing becomes the same word everywhere.

Two ways together. What is known by where it stands (servers, models, files, request ids, label values, arguments) is replaced
whole, whatever it looks like; in all other text whatever looks like a host, address, path, e-mail address or key is. Words are
numbered in the order of what they stand for, so that everything sorted by name stays in its order. User text was never stored.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

_KEYLIKE: Final = re.compile(
    r"\b(?:sk|pk|hf|gh[pousr]|github_pat|glpat|xox[abeoprs]|AKIA|ASIA|AIza|eyJ)[-_A-Za-z0-9.]{12,}"
    r"|\b(?=[A-Za-z0-9_-]*\d)(?=[A-Za-z0-9_-]*[A-Za-z])[A-Za-z0-9_-]{32,}\b|(?i:bearer|basic) [A-Za-z0-9+/=._~-]{8,}"
)
_EMAIL: Final = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_IPV4: Final = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)")
_IPV6: Final = re.compile(
    r"(?<![\w:])(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{0,4}){3,7}|(?:[0-9a-fA-F]{1,4}:){1,6}:(?:[0-9a-fA-F]{1,4})?|::[0-9a-fA-F]{1,4})(?![\w:])"
)
_URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)]+", re.IGNORECASE)
_PATH: Final = re.compile(
    r"(?<![\w/.])(?:\.{1,2}|~)?(?:/[\w.@+-]+){2,}/?|(?<![\w/.])(?:\.{1,2}|~)/[\w.@+-]+|\b[A-Za-z]:\\[\w.\\-]+"
)
_REQUEST: Final = re.compile(r"\b(?:chat)?cmpl-[\w-]{4,}|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
_HOST: Final = re.compile(
    r"\b(?:[A-Za-z0-9][\w-]*\.)+(?:local|localdomain|internal|intern|lan|corp|home|svc|cluster|com|net|org|io|ai|dev|edu|gov|de|eu|uk|cloud|app)\b(?:\.[\w-]+)*"
)
_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}:\d{2}")
_PATTERNS: Final = (
    ("url", _URL), ("email", _EMAIL), ("request", _REQUEST), ("key", _KEYLIKE), ("address", _IPV4), ("address", _IPV6), ("path", _PATH), ("host", _HOST),
)  # fmt: skip
_NOT_A_NAME: Final = ("", "0.0.0.0", "127.0.0.1", "localhost", "::", "::1", "None", "none", "auto")  # noqa: S104 names no machine

# Arguments whose text is one of vLLM's own words; any other text in arguments is replaced whole.
WORDS: Final = frozenset(
    {
        "dtype", "torch_dtype", "quantization", "kv_cache_dtype", "load_format", "scheduling_policy", "device_config", "device", "version",
        "distributed_executor_backend", "all2all_backend", "expert_placement_strategy", "optimization_level", "method", "kv_connector", "kv_role",
        "kv_offloading_backend", "prefix_caching_hash_algo", "reasoning_parser", "tool_call_parser", "mode", "backend", "architectures", "model_type",
        "hidden_act", "data_parallel_backend", "attention_backend", "kv_buffer_device", "publisher", "cache_dtype", "mamba_cache_mode",
        "cudagraph_mode", "rope_type", "type", "guided_decoding_backend", "seed",
    }
)  # fmt: skip
NAMES: Final = {
    "model": "model",
    "served_model_name": "model",
    "model_tag": "model",
    "tokenizer": "model",
    "model_config": "model",
    "host": "host",
}
# Keys of a document whose values are our own words, whatever a server or bundle is called.
OURS: Final = frozenset(
    {"link", "limiting", "runner_up", "load", "verdict", "status", "level", "role", "kind", "predicted_by", "flags", "query", "columns", "sha256"}
)  # fmt: skip
MOST_LISTED: Final = 50
_WORD: Final = re.compile(r"[A-Za-z][\w.+-]{0,39}|\d[\w.+]{0,19}")
_PLAIN: Final = re.compile(r"-?\d{1,18}(?:\.\d{1,9})?|True|False|None|auto|none|null|true|false")
_FLAG: Final = re.compile(r"[A-Za-z][\w.-]{0,60}")


@dataclass
class Redactor:
    """Replaces consistently. `known`: whole strings given beforehand, and what they are. `places` counts replacements by word."""

    known: dict[str, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)

    def give(self, texts: Iterable[str], kind: str) -> None:
        """Name whole strings before they are met, in their order; short and empty ones would tear other words apart."""
        fresh = sorted({text for text in texts if text not in _NOT_A_NAME and text not in self.words})
        width = len(str(len(fresh) + self.kinds.get(kind, 0)))
        for text in fresh:
            self.known.setdefault(text, kind)
            self.name(text, kind, width)

    def name(self, text: str, kind: str, width: int = 1) -> str:
        """Give a whole text a word, in the digits that its kind needs."""
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.words[text] = f"{kind}-{self.kinds[kind]:0{width}d}"
        return self.words[text]

    def word(self, text: str, kind: str) -> str:
        """The word that stands for a whole text."""
        if text in _NOT_A_NAME:
            return text
        found = self.words.get(text) or self.name(text, kind)
        self.places[found] = self.places.get(found, 0) + 1
        return found

    def text(self, value: str) -> str:
        """A text with everything that names somebody replaced."""
        if value in self.known:
            return self.word(value, self.known[value])
        for known in sorted(self.known, key=len, reverse=True):
            if len(known) > 2 and known in value:
                whole = re.compile(rf"(?<![\w-]){re.escape(known)}(?![\w-])")
                value = whole.sub(lambda _, known=known: self.word(known, self.known[known]), value)  # type: ignore[misc]
        for kind, pattern in _PATTERNS:
            value = pattern.sub(partial(self._hidden, kind), value)
        return value

    def _hidden(self, kind: str, match: re.Match[str]) -> str:
        return match[0] if _CLOCK.fullmatch(match[0]) or match[0] in _NOT_A_NAME else self.word(match[0], kind)

    def value(self, value: Any) -> Any:
        """A plain value with all its strings, keys too, replaced."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): item if name in OURS else self.value(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def command(self, value: str) -> str:
        """A command line: its words one by one."""
        return shlex.join(
            self.word(one, self.known.get(one, "word")) if one in self.words else self.text(one) for one in shlex.split(value)
        )

    def argument(self, name: str, value: Any) -> Any:
        """The value of an argument: numbers and vLLM's own words stay, models and hosts are named, other text is replaced whole."""
        if isinstance(value, Mapping):
            return {
                key if _FLAG.fullmatch(str(key)) else self.word(str(key), "argument"): self.argument(str(key), item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.argument(name, item) for item in value]
        if not isinstance(value, str) or _PLAIN.fullmatch(value):
            return value
        if name in NAMES:
            return self.word(value, NAMES[name])
        if value in self.words:
            return self.word(value, "argument")
        return value if name in WORDS and _WORD.fullmatch(value.removeprefix("torch.")) else self.word(value, "argument")

    def flags(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name; a name that is none of a flag is replaced too."""
        return {
            name if _FLAG.fullmatch(name) else self.word(name, "argument"): self.argument(name, value)
            for name, value in given.items()
        }

    def label(self, name: str, value: str, kept: Iterable[str]) -> str:
        """The value of a metric's label: of the labels in `kept`, and numbers, as it is; of others replaced whole."""
        if _PLAIN.fullmatch(value):
            return value
        own = value == "+Inf" or (name in kept and _WORD.fullmatch(value) is not None)
        return value if own and value not in self.words else self.word(value, "label")

    def counted(self) -> dict[str, int]:
        """How many different things of each kind were replaced."""
        kinds = [word.rpartition("-")[0] for word in self.places]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def listed(self) -> dict[str, tuple[str, int]]:
        """What was replaced: word -> (what it stood for, in how many places). For who makes the report, not for the report."""
        back = {word: text for text, word in self.words.items()}
        return {word: (back[word], count) for word, count in sorted(self.places.items(), key=lambda item: _sorted(item[0]))}

    def lines(self) -> list[str]:
        """The same as lines of text; of very many of one kind (request ids) only how many."""
        counted, out = self.counted(), []
        for word, (text, places) in self.listed().items():
            kind = word.rpartition("-")[0]
            if counted[kind] <= MOST_LISTED:
                out.append(f"{word:<14} {places:>6} times  {text}")
        return [*out, *(f"{kind}: {count} different ones" for kind, count in counted.items() if count > MOST_LISTED)]


def _sorted(word: str) -> tuple[str, int]:
    kind, _, number = word.rpartition("-")
    return kind, int(number)


def redactor_of(document: Mapping[str, Any]) -> Redactor:
    """A redactor that knows the servers, models and files of a document."""
    redactor = Redactor()
    instances = {str(engine["instance"]) for engine in document.get("engines", [])}
    instances |= {str(one["server"]) for one in document.get("arguments", [])}
    instances |= {str(one.get("server") or "") for one in document["source"]["files"]}
    redactor.give(instances, "server")
    hosts = {instance.rpartition(":")[0] for instance in instances if instance.rpartition(":")[2].isdigit()}
    redactor.give(hosts, "host")
    models = document.get("window", {}).get("model") or []
    given = [models] if isinstance(models, str) else list(models)
    for one in document.get("arguments", []):
        given += [value for name in NAMES if NAMES[name] == "model" for value in _strings(one["flags"].get(name))]
    redactor.give(map(str, given), "model")
    for read in (True, False):  # the files that were read first: their words are those of the data beside the report
        redactor.give((str(file["name"]) for file in document["source"]["files"] if bool(file.get("format")) is read), "file")
    for name in sorted({str(file.get("bundle") or "") for file in document["source"]["files"]} - {""}):
        redactor.name(name, "bundle")  # only where it stands alone: a folder may be called like anything
    return redactor


def _strings(value: Any) -> list[str]:
    return (
        [value] if isinstance(value, str) else [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
    )


def redacted(document: Mapping[str, Any], redactor: Redactor | None = None) -> dict[str, Any]:
    """A document without names; `replaced` in it counts the different ones of each kind."""
    redactor = redactor or redactor_of(document)
    out: dict[str, Any] = {}
    for name, value in document.items():
        if name == "arguments":
            out[name] = [_arguments(redactor, one) for one in value]
        elif name == "source":
            out[name] = {**value, "files": [_file(redactor, one) for one in value["files"]]}
        elif name == "series":
            out[name] = {redactor.text(engine): columns for engine, columns in value.items()}
        elif name == "reproduce":
            out[name] = redactor.command(value)
        elif name in {"versions", "weaklink", "schema", "data"}:
            out[name] = value
        else:
            out[name] = redactor.value(value)
    out["replaced"] = redactor.counted()
    return out


def _arguments(redactor: Redactor, one: Mapping[str, Any]) -> dict[str, Any]:
    left = [name if _FLAG.fullmatch(name) else redactor.word(name, "argument") for name in one["left_out"]]
    return {"server": redactor.text(one["server"]), "flags": redactor.flags(one["flags"]), "left_out": left}


def _file(redactor: Redactor, one: Mapping[str, Any]) -> dict[str, Any]:
    """A file keeps its hash: by it whoever has the file can tell that it is the one."""
    named = {"name": redactor.word(one["name"], "file")}
    for key, kind in (("bundle", "bundle"), ("server", "server")):
        if one.get(key):
            named[key] = redactor.word(one[key], kind)
    named |= {"why": redactor.text(one["why"])} if one.get("why") else {}
    return {**one, **named}


def labels(redactor: Redactor, raw: str, kept: Iterable[str]) -> str:
    """The labels of a series (JSON with sorted keys), redacted."""
    found: Mapping[str, str] = json.loads(raw)
    return json.dumps({name: redactor.label(name, str(value), kept) for name, value in found.items()}, sort_keys=True)
