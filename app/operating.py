"""`weaklink backup` and `restore`: what an operator does with a store that runs for months. Heavy modules are imported where needed."""

import json
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

WRONG: Final = 1


class Format(StrEnum):
    """How a verb prints."""

    TEXT = "text"
    JSON = "json"


StorePath = Annotated[
    Path | None,
    typer.Option("--store", help="The DuckDB file. [default: weaklink.duckdb in the user's data folder]", show_default=False),
]
Output = Annotated[Format, typer.Option("--format", help="Output format.")]


def default_store() -> Path:
    """weaklink.duckdb in the user's data folder (XDG_DATA_HOME, else ~/.local/share)."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "weaklink" / "weaklink.duckdb"


def _fail(message: str) -> NoReturn:
    typer.echo(f"weaklink: {message}", err=True)
    raise typer.Exit(WRONG)


def _say(said: dict[str, Any], text: str, output: Format) -> None:
    typer.echo(json.dumps(said, indent=1) if output is Format.JSON else text)


def backup(
    out: Annotated[Path, typer.Argument(help="The .tar to write; it is there only once it is whole.")],
    store: StorePath = None,
    server: Annotated[
        str | None,
        typer.Option(help="Of a store that `weaklink serve` holds: its address, http://127.0.0.1:8501.", show_default=False),
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="WEAKLINK_TOKEN", help="The server's token, where it has one.", show_default=False)
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Write a backup: the store as it is at one instant, closed days included; also while it is served.

    Exit status: 0 written, 1 not, and nothing is left.
    """
    from app.backup import BackupError, pieces, write
    from app.store import DatabaseError, Store, StoreError

    if not out.parent.is_dir():
        _fail(f"{out.parent}: no such folder")
    try:
        if server is not None:
            size = write(_fetched(server.rstrip("/"), token), out)
        else:
            path = store or default_store()
            if not path.exists():
                _fail(f"{path}: no such store")
            with Store(path) as opened:
                size = write(pieces(opened), out)
                opened.note("backup", f"{size} bytes to {out.name}")
    except StoreError as error:
        _fail(f"{error} Where `weaklink serve` holds it: --server http://HOST:PORT")
    except (BackupError, DatabaseError, OSError) as error:
        _fail(f"no backup: {error}")
    _say({"backup": str(out), "bytes": size}, f"{out}  {size / 1e6:.1f} MB", output)


def _fetched(server: str, token: str | None) -> Iterator[bytes]:
    """The backup that a server makes. BackupError: it makes none, or breaks off."""
    import httpx

    from app.backup import BackupError

    headers = {"X-Weaklink": "backup"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        with httpx.stream("POST", f"{server}/api/backup", headers=headers, timeout=httpx.Timeout(30, read=600)) as answer:
            if answer.status_code != 200:
                answer.read()
                raise BackupError(f"{server}: {answer.status_code} {answer.text.strip()[:300]}")
            yield from answer.iter_bytes()
    except httpx.HTTPError as error:
        raise BackupError(f"{server}: {type(error).__name__}: {error}") from error


def restore(
    archive: Annotated[Path, typer.Argument(help="A backup, as `weaklink backup` writes it.")],
    store: StorePath = None,
    output: Output = Format.TEXT,
) -> None:
    """Make a store from a backup, where there is none yet; one of an older version is migrated.

    Exit status: 0 restored, 1 not, and nothing is left.
    """
    from app.backup import BackupError
    from app.backup import restore as run

    path = store or default_store()
    try:
        manifest = run(archive, path)
    except BackupError as error:
        _fail(str(error))
    rows = sum(manifest["tables"].values())
    said = {"store": str(path), "made_ts": manifest.get("made_ts"), "weaklink": manifest.get("weaklink"), "rows": rows}
    _say(said, f"{path}  {rows} rows, from weaklink {manifest.get('weaklink')}", output)


VERBS: Final = (backup, restore)
