"""The page at /: what it is served as, and what its files hold. What it does is seen in `tests/e2e/page`."""

import gzip
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import httpx

from milkweed.server.security.keys import key_block

from ...support.server_parts import Running, Start, check_error

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "server" / "api" / "static"
FILES = sorted(path.name for path in FOLDER.iterdir())
SCRIPTS = [name for name in FILES if name.endswith(".js")]
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
MAX_BYTES = 60_000
PLAIN = {"accept-encoding": "identity"}


def address(name: str) -> str:
    return "/" if name == "index.html" else f"/page/{name}"


async def test_each_file_is_served_as_what_it_is(app: Running) -> None:
    """Nothing but this origin may be loaded, as the documentation says; and all of it is small."""
    policy = (ROOT / "docs" / "page.md").read_text().partition("    default-src")[2].partition("\n\n")[0]
    sent = 0
    for name in FILES:
        plain = await app.client.get(address(name), headers=PLAIN)
        async with app.client.stream("GET", address(name), headers={"accept-encoding": "br, gzip"}) as packed:
            raw = b"".join([chunk async for chunk in packed.aiter_raw()])
        head = await app.client.head(address(name), headers=PLAIN)
        assert plain.status_code == packed.status_code == head.status_code == 200
        assert plain.content == gzip.decompress(raw) == (FOLDER / name).read_bytes()
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert plain.headers["content-type"].partition(";")[0] == KINDS[Path(name).suffix]
        assert plain.headers["x-content-type-options"] == "nosniff"
        assert plain.headers["vary"] == "accept-encoding"
        assert plain.headers["referrer-policy"] == "no-referrer"
        assert plain.headers["content-security-policy"] == " ".join(f"default-src{policy}".split())
        assert (head.content, head.headers["content-length"]) == (b"", plain.headers["content-length"])
        sent += len(raw) + sum(len(name) + len(value) + 4 for name, value in packed.headers.raw)
    assert sent < MAX_BYTES


async def test_browser_that_has_a_file_gets_304(app: Running) -> None:
    get = app.client.get
    first = await get("/")
    etag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    for known in (etag, etag.removeprefix("W/"), f'"other", {etag}'):
        again = await get("/", headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    for known in ('"other"', "W/", etag[:-2], ""):
        assert (await get("/", headers={"if-none-match": known})).status_code == 200
    assert len({(await get(address(name))).headers["etag"] for name in FILES}) == len(FILES)


async def test_page_is_off_by_a_setting(running: Start) -> None:
    async with running(settings={"page": False}) as app:
        for path in ("/", "/page/main.js"):
            check_error(await app.client.get(path), 404, "not_found")
        assert (await app.client.get("/docs")).status_code == 200


async def test_unknown_files_are_404(running: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(key_block("somebody", "a-key"))
    async with running(settings={"api_keys": str(keys)}, wait=False) as app:
        for name in ("index.html", "nothing.js", "..%2fsettings.py", "%2e%2e/settings.py"):
            check_error(await app.client.get(f"/page/{name}"), 404, "not_found")
        for path in ("/page", "/page/"):
            check_error(await app.client.get(path), 401, "unauthorized")


async def test_page_works_below_a_path(app: Running) -> None:
    """A proxy may serve the page under a path, and tell the server which."""
    transport = httpx.ASGITransport(app=app.app, root_path="/some/where")
    async with httpx.AsyncClient(transport=transport, base_url="http://server/some/where/") as client:
        page = await client.get("")
        found = re.findall(r'(?:href|src)="([^"]+)"', page.text)
        statuses = {(await client.get(link)).status_code for link in found}
    assert statuses == {200}
    assert {"page/style.css", "page/main.js", "page/icon.svg", "docs", "v1/models", "metrics"} <= set(found)


def test_page_names_each_of_its_files_and_no_others() -> None:
    named = set(re.findall(r'(?:href|src)="page/([^"]+)"', (FOLDER / "index.html").read_text()))
    for name in SCRIPTS:
        imports = re.findall(r'^import .* from "\./([a-z]+\.js)";$', (FOLDER / name).read_text(), re.MULTILINE)
        assert (FOLDER / name).read_text().count("import ") == len(imports)
        named |= set(imports)
    assert named == set(FILES) - {"index.html"}


def test_nothing_is_inline_and_no_text_becomes_markup() -> None:
    html = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]* src=)|javascript:", html)
    for name in FILES:
        text = (FOLDER / name).read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), name
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, f"{name}: {word}"


def test_wheel_has_every_file_of_the_page() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for name in FILES:
        assert any(fnmatch(f"static/{name}", pattern) for pattern in data["milkweed.server.api"]), name
