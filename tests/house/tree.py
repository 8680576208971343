"""The files of the project: what git tracks, or, in an unpacked archive, what .gitignore does not name."""

import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent


def tracked(root: Path = ROOT) -> list[Path]:
    """List files that exist, relative to `root`."""
    if (root / ".git").exists():
        command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
        listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode().split("\0")
        files = [Path(name) for name in listed if name]
    else:
        files = [file.relative_to(root) for file in sorted(root.rglob("*")) if not ignored(file.relative_to(root), root)]
    return [file for file in files if (root / file).is_file()]


def ignored(file: Path, root: Path) -> bool:
    patterns = [line.strip().rstrip("/") for line in (root / ".gitignore").read_text().splitlines()]
    return any(fnmatch(part, pattern) for part in file.parts for pattern in patterns if pattern)
