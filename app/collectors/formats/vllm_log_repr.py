"""Arguments as vLLM logs them: the text of Python objects, read without evaluating anything.

`non-default args: {'port': 8000, 'kv_transfer_config': KVTransferConfig(kv_role='kv_both', ...)}` (0.9 on),
`args: Namespace(port=8000, ...)` (0.8.5) and `config: model='./m', dtype=torch.bfloat16, compilation_config={...}` (all).
Objects become dicts of their arguments, enum members their name; what is cut off is left out. Secrets become "***".
"""

import re
from contextlib import suppress
from typing import Any, Final

DEPTH: Final = 40  # nested deeper than any configuration
LONGEST: Final = 300  # characters kept of a text: a chat template may hold anything

_SPACE: Final = re.compile(r"[\s,]*")
_STRING: Final = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
_NUMBER: Final = re.compile(r"[-+]?\d{1,18}(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?=[\s,)\]}:]|$)")
_CALL: Final = re.compile(r"[A-Za-z_][\w.]*\(")
_KEYWORD: Final = re.compile(r"([A-Za-z_]\w*)=")
_ENUM: Final = re.compile(r"<\w+\.(\w+): [^<>]*>")
_ANGLE: Final = re.compile(r"<[^<>]*>")
_WORD: Final = re.compile(r"[^\s,()\[\]{}:=]+")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_WORDS: Final = {"None": None, "True": True, "False": False, "null": None, "true": True, "false": False}
_SECRET: Final = re.compile(
    r"(?:^|[_.-])(?:api_?keys?|keys?|keyfile|tokens?|secrets?|passw(?:or)?d|passphrase|credentials?|auth|authorization|headers?)$",
    re.IGNORECASE,
)
_SECRET_VALUE: Final = re.compile(r"(?:hf|sk|ghp|glpat|xox[bp])[-_]|Bearer ")
_USERINFO: Final = re.compile(r"://[^/@\s]+@")


class _Cut(Exception):  # noqa: N818 (no error: the text ends before the object does)
    """The text ends inside of a value."""


def entries(text: str, *, ended: bool = True) -> dict[str, Any]:
    """Return {name: value} of a dict, a call or a bare list of keywords; the complete ones where the text is cut.

    A bare list shows by nothing that it is cut: `ended` says that its last value is whole.
    """
    found: dict[str, Any] = {}
    call = _CALL.match(text)
    at = call.end() if call else int(text.startswith("{"))
    with suppress(_Cut):
        _items(text, at, found, 0, closed=bool(at) or not ended)
    return found


def masked(value: Any, name: str = "") -> Any:
    """Return a value without secrets: texts below a name such as api_key, texts that look like tokens, passwords in URLs."""
    if isinstance(value, dict):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item, name) for item in value]
    if not isinstance(value, str):
        return value
    if _SECRET.search(name) or _SECRET_VALUE.match(value):
        return "***"
    text = _USERINFO.sub("://***@", value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def _items(text: str, at: int, found: dict[str, Any], depth: int, *, closed: bool = True) -> int:
    """Read `name=value` or `key: value` items into `found`; return where they end. _Cut: before they are `closed`."""
    size = len(text)
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        if at >= size:
            if closed:
                raise _Cut
            return at
        if text[at] in ")]}":
            return at + 1
        keyword = _KEYWORD.match(text, at)
        if keyword:
            key: Any = keyword.group(1)
            at = keyword.end()
        else:
            key, at = _value(text, at, depth)
            if text[at : at + 1] != ":":
                continue  # a positional argument
            at += 1
        value, at = _value(text, at, depth)
        if at >= size and closed:
            raise _Cut  # perhaps the end of the value is missing
        found[str(key)] = value


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        if at >= len(text):
            raise _Cut
        if text[at] in ")]}":
            return found, at + 1
        value, at = _value(text, at, depth)
        found.append(value)


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return one value and where it ends: always further on."""
    while text[at : at + 1] == " ":
        at += 1
    if at >= len(text) or depth > DEPTH:
        raise _Cut
    first = text[at]
    if first in "'\"":
        match = _STRING.match(text, at)
        if match is None:
            raise _Cut
        return _ESCAPE.sub(r"\1", match.group(1) if match.group(1) is not None else match.group(2)), match.end()
    if first in "[(":
        return _list(text, at + 1, depth + 1)
    call = _CALL.match(text, at)
    if first == "{" or call:
        inner: dict[str, Any] = {}
        at = _items(text, call.end() if call else at + 1, inner, depth + 1)
        return inner, at
    return _atom(text, at)


def _atom(text: str, at: int) -> tuple[Any, int]:
    number = _NUMBER.match(text, at)
    if number:
        raw = number.group()
        return (int(raw) if raw.lstrip("+-").isdigit() else float(raw)), number.end()
    enum = _ENUM.match(text, at)
    if enum:
        return enum.group(1), enum.end()
    angle = _ANGLE.match(text, at)
    if angle:
        return None, angle.end()  # a function or another object without a value
    word = _WORD.match(text, at)
    if word is None:
        return None, at + 1
    return _WORDS.get(word.group(), word.group()), word.end()
