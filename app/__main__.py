"""`python -m app` is `weaklink`."""

from app.cli import main

main()
