"""HTML that escapes by itself: what is not `Html` already becomes text, so that no user data turns into markup."""

import html
from collections.abc import Iterable
from typing import Final

_EMPTY: Final = {"br", "hr", "img"}  # elements that hold nothing and have no end


class Html(str):
    """Markup that may stand in a page as it is."""

    __slots__ = ()


def esc(text: object) -> Html:
    """Text for a page; `Html` stays as it is."""
    return text if isinstance(text, Html) else Html(html.escape(str(text)))


def join(parts: Iterable[object], between: object = "") -> Html:
    """Parts one after the other, each escaped; None and "" are left out."""
    return Html(esc(between).join(esc(part) for part in parts if part is not None and part != ""))


def tag(name: str, *inside: object, look: str = "", **attributes: str | None) -> Html:
    """An element: `look` is its class, `data_x` the attribute data-x, `id_` is id; attributes that are None are left out."""
    given = {"class": look or None, **attributes}
    head = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(text)}"' for key, text in given.items() if text is not None
    )
    return Html(f"<{name}{head}>" if name in _EMPTY else f"<{name}{head}>{join(inside)}</{name}>")


def div(look: str, *inside: object, **attributes: str | None) -> Html:
    """A div of a class."""
    return tag("div", *inside, look=look, **attributes)


def bold(*inside: object) -> Html:
    """What the eye should find."""
    return tag("b", *inside)


def link(to: str, *inside: object) -> Html:
    """A link that stays in this tab."""
    return tag("a", *inside, href=to, target=None if to.startswith("#") else "_self")


def table(heads: Iterable[tuple[object, str]], rows: Iterable[Html]) -> Html:
    """A table: (head, class) of each column, rows as `row` makes them."""
    top = tag("tr", *(tag("th", head, look=look) for head, look in heads))
    return tag("table", tag("thead", top), tag("tbody", *rows), look="wl-table")


def row(cells: Iterable[object], *, numbers: Iterable[int] = (), look: str = "", heads: dict[int, str] | None = None) -> Html:
    """A table row. `numbers` are the right-aligned columns, `heads` what a narrow screen writes before a cell."""
    right = set(numbers)
    shown = [
        tag("td", cell, look="num" if at in right else "", data_head=(heads or {}).get(at) if cell not in {"", None} else None)
        for at, cell in enumerate(cells)
    ]
    return tag("tr", *shown, look=look)
