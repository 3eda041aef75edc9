"""Serves GET /, the page that shows what this server does, and the files it is made of."""

import gzip
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from ..security.auth import PAGE_FILES

# The page may load from this origin only, and nothing may make a script out of text.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)

_FOLDER = Path(__file__).resolve().parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile:
    """A file of the page, read and compressed once."""

    def __init__(self, path: Path) -> None:
        self._plain = path.read_bytes()
        self._packed = gzip.compress(self._plain, mtime=0)
        self._tag = f'"{sha256(self._plain).hexdigest()[:16]}"'
        self._headers = {
            "content-type": _TYPES[path.suffix],
            "etag": f"W/{self._tag}",  # weak, since it stands for both forms of the file
            # Browsers ask at every load, so that a page is never a mixture of two versions.
            "cache-control": "no-cache",
            "vary": "accept-encoding",
            "content-security-policy": PAGE_POLICY,
            "referrer-policy": "no-referrer",
        }

    def answer(self, request: Request) -> Response:
        """Send the file, or 304 to a browser that has it."""
        known = request.headers.get("if-none-match", "").split(",")
        if self._tag in (tag.strip().removeprefix("W/") for tag in known):
            return Response(status_code=304, headers=self._headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self._packed, headers={**self._headers, "content-encoding": "gzip"})
        return Response(self._plain, headers=self._headers)


def page_routes() -> APIRouter:
    """Make the routes of the page; its addresses are relative, so that it also works behind a proxy's path."""
    router = APIRouter(include_in_schema=False)
    files = {path.name: PageFile(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES}
    home = files.pop("index.html")

    @router.get("/")
    async def page(request: Request) -> Response:
        return home.answer(request)

    @router.get(PAGE_FILES + "{name}")
    async def page_file(request: Request, name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return files[name].answer(request)

    return router
