"""Runs the suite: installs the programs that it drives, where they are missing, then starts pytest.

    uv run tests/run.py [pytest arguments]

Without arguments the whole suite runs, on two cores. Exit status: pytest's.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from conftest import PACKAGES

ROOT: Final = Path(__file__).resolve().parent.parent
FONT: Final = Path("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")  # screenshots without a font have no text
FONT_PACKAGE: Final = "fonts-dejavu-core"

SUITE: Final = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]  # a file's servers and recordings are made once

# $@: packages. The policy keeps Debian's packages from starting their services: the tests start their own, on free ports.
INSTALL: Final = r"""
set -eu
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  trap 'exit 130' INT TERM
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
mkdir -p /usr/share/man/man1 # slim images have no manuals; Java's package links to its own
apt-get -q -o DPkg::Lock::Timeout=300 update
apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"
"""


def missing() -> list[str]:
    """Debian packages of which something is not on this machine."""
    packages = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if not FONT.exists():
        packages.append(FONT_PACKAGE)
    return list(dict.fromkeys(packages))


def install(packages: list[str]) -> bool:
    """Installs them; False where this machine does not let us, after saying what to install."""
    root = os.geteuid() == 0
    if shutil.which("apt-get") is None or not (root or shutil.which("sudo")):
        why = "neither root nor sudo" if shutil.which("apt-get") else "no apt-get"
        print(f"{why} here. Tests that need these programs will be skipped; Debian's packages: {' '.join(packages)}", flush=True)
        return False
    print(f"installing by apt-get: {' '.join(packages)}", flush=True)
    command = ["sh", "-c", INSTALL, "sh", *packages]
    done = subprocess.run(command if root else ["sudo", *command], stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        print(f"apt-get failed with status {done.returncode}: the tests that need these programs will fail", flush=True)
    return True


def compiled(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, such that what Python compiled is kept: below .pytest_cache where it must not lie beside the sources.

    The tests start the program more than a hundred times; each start would compile all that it imports.
    """
    kept = dict(environment)
    if kept.pop("PYTHONDONTWRITEBYTECODE", ""):
        kept["PYTHONPYCACHEPREFIX"] = str(ROOT / ".pytest_cache" / "compiled")
    return kept


def main(arguments: list[str]) -> None:
    """Becomes pytest."""
    packages = missing()
    strict = install(packages) if packages else True
    required = ["--require-programs"] if strict else []
    os.chdir(ROOT)
    os.execve(sys.executable, [sys.executable, "-m", "pytest", *required, *(arguments or SUITE)], compiled(os.environ))


if __name__ == "__main__":
    main(sys.argv[1:])
