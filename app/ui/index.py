"""The document that the browser loads first, for the address of every page.

Streamlit's own looks for its server under the page's path before it looks at the root, which fails with 404s in the console, and
a link inside our own HTML would load everything anew. Two small scripts mend that; everything else is Streamlit's.
"""

from functools import cache
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

_SCRIPT: Final = """<script>
window.__streamlit = {BACKEND_BASE_URL: location.origin + location.pathname.replace(/\\/(PAGES)?\\/?$/, "")}
document.addEventListener("click", (event) => {
  const link = event.target.closest && event.target.closest(".stHtml a[href]")
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return
  const to = new URL(link.href)
  if (to.origin !== location.origin || link.getAttribute("href").startsWith("#")) return
  event.preventDefault()
  history.pushState({}, "", to.pathname + to.search)
  window.dispatchEvent(new PopStateEvent("popstate"))
})
</script>"""


def names() -> list[str]:
    """The pages by their addresses: the modules of app/ui/screens, which are not imported for it."""
    found = (entry.name for entry in files("app.ui.screens").iterdir())
    return sorted(name.removesuffix(".py") for name in found if name.endswith(".py") and not name.startswith("_"))


@cache
def document() -> str:
    """Streamlit's document with our scripts in its head."""
    text = files("streamlit").joinpath("static", "index.html").read_text(encoding="utf-8")
    return text.replace("<head>", f"<head>{_SCRIPT.replace('PAGES', '|'.join(names()))}", 1)


async def _index(_: Request) -> Response:
    return HTMLResponse(document(), headers={"Cache-Control": "no-cache"})


def routes(base: str = "") -> list[Route]:
    """A route for the address of each page, below `base` where the dashboard is."""
    return [Route(f"{base}{path}", _index, methods=["GET"]) for path in ("/", *(f"/{name}" for name in names()))]
