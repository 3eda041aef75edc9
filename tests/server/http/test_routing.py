"""What HTTP asks of every route, on all ports: HEAD, OPTIONS, Allow, a slash at the end, words for no such path."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, make_wsgi_app

from milkweed.server.admin.app import create_admin_app
from milkweed.server.process.metrics_port import with_head, with_probes
from milkweed.server.security.keys import key_block

from ...support.server_parts import Running, Start, encoded

MODEL = "/v2/models/held"
READ = [
    *("/", "/page/main.js", "/docs", "/openapi.json", "/livez", "/readyz", "/health", "/startupz", "/metrics"),
    "/v1/models",
    *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", MODEL, f"{MODEL}/ready", f"{MODEL}/config"),
]
POSTED = ["/classify", f"{MODEL}/infer", "/v2/repository/index"]
UNKNOWN = ["/v2/models/nosuch", "/v2/models/nosuch/ready"]


def headers(answer: httpx.Response, *changing: str) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in ("x-request-id", *changing)}


async def test_head_is_get_without_its_body(app: Running) -> None:
    """The server leaves the body out, which `tests/e2e` sees; here status and headers are those of GET."""
    for path in READ + UNKNOWN:
        get, head = [await app.client.request(method, path) for method in ("GET", "HEAD")]
        changing = ("content-length",) if path in ("/metrics", "/v2/models/stats") else ()
        assert (get.status_code, headers(get, *changing)) == (head.status_code, headers(head, *changing)), path
    assert app.value("http_request_duration_seconds_count", route="/livez", method="HEAD", code="200") == 1


async def test_options_and_405_name_all_methods(app: Running) -> None:
    for path in READ + POSTED:
        methods = "OPTIONS, POST" if path in POSTED else "GET, HEAD, OPTIONS"
        options, wrong = [await app.client.request(method, path) for method in ("OPTIONS", "DELETE")]
        assert (options.status_code, options.content, options.headers["allow"]) == (204, b"", methods), path
        assert (wrong.status_code, wrong.headers["allow"]) == (405, methods), path
    for path in POSTED:
        for method in ("GET", "HEAD"):
            assert (await app.client.request(method, path)).headers["allow"] == "OPTIONS, POST"


async def test_a_slash_at_the_end_changes_nothing(app: Running) -> None:
    for path in READ + UNKNOWN:
        plain, slash = await app.client.get(path), await app.client.get(path + "/")
        changing = ("content-length",) if path in ("/metrics", "/v2/models/stats") else ()
        assert (plain.status_code, headers(plain, *changing)) == (slash.status_code, headers(slash, *changing))
    answers = [await app.client.post(path, content=encoded()) for path in ("/classify", "/classify/")]
    assert answers[0].json()["results"] == answers[1].json()["results"]
    assert app.value("http_request_duration_seconds_count", route="/classify", method="POST", code="200") == 2


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/clasify", "/classify"),
        ("/v1/classify", "/classify"),
        ("/Classify", "/classify"),
        ("/ready", "/readyz"),
        ("/v1/model", "/v1/models"),
        ("/v2/health/alive", "/v2/health/live"),
        ("/nothing-like-it", ""),
    ],
)
async def test_a_path_that_is_none_names_the_nearest(app: Running, path: str, near: str) -> None:
    for method in ("GET", "POST", "HEAD", "OPTIONS"):
        answer = await app.client.request(method, path)
        assert answer.status_code == 404
        assert method == "HEAD" or (f"did you mean {near}?" if near else "see /docs") in answer.text


async def test_keys_are_asked_for_whatever_the_method(running: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(key_block("somebody", "a-key"))
    async with running(settings={"api_keys": str(keys)}) as app:
        for method in ("GET", "HEAD", "OPTIONS"):
            for path in ("/v1/models", "/v1/models/", "/metrics/"):
                assert (await app.client.request(method, path)).status_code == 401
            assert (await app.client.request(method, "/")).status_code in (200, 204)  # HAProxy's `option httpchk`


async def test_the_admin_port_does_the_same(app: Running) -> None:
    transport = httpx.ASGITransport(app=create_admin_app(app.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        for path in ("/v1/aliases", "/v1/aliases/"):
            get, head, options = [await client.request(method, path) for method in ("GET", "HEAD", "OPTIONS")]
            assert get.status_code == head.status_code == 200
            assert head.headers["content-length"] == str(len(get.content))
            assert options.headers["allow"] == "GET, HEAD, OPTIONS"
        alias = await client.post("/v1/aliases/x")
        assert (alias.status_code, alias.headers["allow"]) == (405, "DELETE, OPTIONS, PUT")  # of two routes
        missing = await client.get("/v1/alias")
        assert missing.status_code == 404
        assert "did you mean /v1/aliases?" in missing.json()["error"]["message"]


@pytest.mark.parametrize(
    ("url", "body", "words"),
    [
        ("/v1/models/held/unload?vesion=3", b"", "no parameter 'vesion'; there are: version; did you mean version?"),
        ("/v1/models/held/load?number=3&number=4", b"", "parameter number is given twice"),
        ("/v1/models/held/load", b'{"number": "3"}', "takes no body; parameters: number"),
        ("/v1/repository/poll?name=held", b"", "no parameter 'name'"),
    ],
)
async def test_what_the_admin_api_is_told_counts_or_is_refused(app: Running, url: str, body: bytes, words: str) -> None:
    transport = httpx.ASGITransport(app=create_admin_app(app.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        answer = await client.post(url, content=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def metrics_port(app: Running, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
    """What the metrics port answers, without its socket."""
    said: list[Any] = []
    answer = with_head(with_probes(make_wsgi_app(CollectorRegistry()), app.service.checks))
    body = b"".join(answer({"REQUEST_METHOD": method, "PATH_INFO": path}, lambda *args: said.extend(args)))
    return int(said[0].split()[0]), dict(said[1]), body


async def test_the_metrics_port_does_the_same(app: Running) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/", "/livez/", "/metrics/"):
        get, head, options, wrong = (metrics_port(app, each, path) for each in ("GET", "HEAD", "OPTIONS", "POST"))
        assert get[0] == head[0] == options[0] == 200
        assert (head[1]["Content-Type"], head[2]) == (get[1]["Content-Type"], b"")
        assert head[1]["Content-Length"] == str(len(get[2]))
        assert (wrong[0], wrong[1]["Allow"], options[1]["Allow"]) == (405, *["GET, HEAD, OPTIONS"] * 2)
    status, _, body = metrics_port(app, "GET", "/ready")  # a misspelt probe got the metrics, and 200
    assert (status, body) == (404, b"there are: /livez, /readyz, /metrics; did you mean /readyz?\n")
