"""GET /: where a browser lands."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from .docs import PAGE_POLICY

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>milkweed</title>
<style>body{{font:16px/1.5 system-ui;max-width:44rem;margin:3rem auto}}pre{{overflow:auto}}</style>
<h1>milkweed</h1>
<p>Classifies images. <a href="docs">API</a> <a href="v1/models">models</a> <a href="metrics">metrics</a></p>
<pre>curl -F image=@dog.jpg {url}classify</pre>
</html>
"""


def home_routes() -> APIRouter:
    """The landing page."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def home(request: Request) -> HTMLResponse:
        # The Host header is the client's; only what can stand in a page as it is gets there. Not request.url,
        # which cannot be made of every Host.
        host = "".join(c for c in request.headers.get("host", "") if (c.isascii() and c.isalnum()) or c in ".:-[]")
        page = _PAGE.format(url=f"{request.scope['scheme']}://{host}/")
        return HTMLResponse(page, headers={"content-security-policy": PAGE_POLICY})

    return router
