"""The store as one user of the dashboard has it: a viewer changes nothing, and the journal knows who did what."""

import re
from typing import Any, Final, cast

from app.access import ADMIN, Who
from app.store import Store

READS: Final = re.compile(r"(?:\s|--.*\n)*(?:SELECT|WITH|FROM|DESCRIBE|EXPLAIN)\b", re.IGNORECASE)
CHANGES: Final = frozenset({"transaction", "add", "insert", "execute", "create", "series_ids", "closed", "close", "cursor"})


class NotAllowedError(Exception):
    """A viewer tried to change something."""


class Seat:
    """A user before the store of the process: what is asked of it is asked of the store."""

    def __init__(self, store: Store, who: Who) -> None:
        self.store, self.who = store, who

    def __getattr__(self, name: str) -> Any:
        if name in CHANGES and not self.may_write:
            raise NotAllowedError(f"{self.who.user or 'this login'} may look, not change: ask an admin of this dashboard")
        return getattr(self.store, name)

    @property
    def may_write(self) -> bool:
        """Whether this user may change things."""
        return self.who.role == ADMIN

    def note(self, kind: str, said: str, who: str | None = None) -> None:
        """As the store's, with the user's name."""
        self.store.note(kind, said, who or self.who.user or None)

    def rows(self, statement: str, params: Any = None) -> list[tuple[Any, ...]]:
        """As the store's; a viewer's statement only reads."""
        return self._asked(statement).rows(statement, params)

    def columns(self, statement: str, params: Any = None) -> dict[str, Any]:
        """As the store's; a viewer's statement only reads."""
        return self._asked(statement).columns(statement, params)

    def frame(self, statement: str, params: Any = None) -> Any:
        """As the store's; a viewer's statement only reads."""
        return self._asked(statement).frame(statement, params)

    def _asked(self, statement: str) -> Store:
        if not self.may_write and not READS.match(statement):
            raise NotAllowedError("this login may look, not change")
        return self.store


def seated(store: Store, who: Who) -> Store:
    """The store as this user has it, for code that takes a Store."""
    return cast(Store, Seat(store, who))
