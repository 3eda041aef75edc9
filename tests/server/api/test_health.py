"""The three probes over the life of the service, and what else answers a GET."""

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from milkweed.server.admin.app import admin_routes

from ...support.server_parts import Start, check_error, one_reason, until

ROOT = Path(__file__).resolve().parents[3]


PROBES = ("/livez", "/readyz", "/startupz")
V2_PROBES = ("/v2/health/live", "/v2/health/ready", "/v2/models/held/ready", "/health")


async def probes(app: Any, paths: tuple[str, ...] = PROBES) -> tuple[int, ...]:
    return tuple([(await app.client.get(path)).status_code for path in paths])


async def test_probes_follow_start_and_drain(running: Start) -> None:
    gate = threading.Event()
    async with running(wait=False, open_gate=gate) as app:
        get, post = app.client.get, app.client.post
        assert await probes(app, PROBES + V2_PROBES) == (200, 503, 503, 200, 503, 503, 503)
        async with one_reason(app, "not_ready", 2):
            early, oip_early = await app.classify(), await get("/v2/models/held")
        check_error(early, 503, "not_ready", "loading")
        assert int(early.headers["retry-after"]) >= 1
        assert (oip_early.status_code, oip_early.json()) == (503, {"error": "the models are loading"})
        loading = {"name": "held", "version": "", "state": "LOADING", "reason": ""}
        assert (await post("/v2/repository/index")).json() == [loading]
        assert (await post("/v2/repository/index", json={"ready": True})).json() == []
        gate.set()
        await asyncio.wrap_future(app.service.prepared)
        assert await probes(app, PROBES + V2_PROBES) == (200,) * 7
        assert (await get("/v2/health/live")).json() == {"live": True}
        assert (await get("/v2/models/held/ready")).json() == {"name": "held", "ready": True}
        app.service.begin_drain()
        assert await probes(app, PROBES + V2_PROBES) == (200, 503, 200, 200, 503, 503, 503)
        unready = await get("/readyz")
        assert unready.json()["error"]["code"] == "draining"
        assert unready.headers["retry-after"] == "1"
        assert (await get("/v2/health/ready")).json() == {"error": "the server is shutting down"}
        assert app.value("requests_rejected_total", reason="draining") == 0  # a probe is no refused request


async def test_models_that_fail_to_load_are_never_ready(running: Start) -> None:
    async with running(wait=False, open_error=ValueError("bundle x: bad hash")) as app:
        with pytest.raises(ValueError, match="bad hash"):
            await asyncio.wrap_future(app.service.prepared)
        assert await probes(app) == (503, 503, 503)
        assert (await app.client.get("/v1/models")).json() == {"models": [], "aliases": []}


async def test_hanging_engine_is_neither_live_nor_ready(running: Start) -> None:
    async with running(settings={"engine_stall_seconds": 0.5}) as app:
        await asyncio.sleep(0.6)  # to be idle is no silence
        assert await probes(app) == (200, 200, 200)
        stuck = await app.hold()
        await until(lambda: app.service.engines.engines[0].silent_seconds() > 0.5)
        assert await probes(app) == (503, 503, 200)
        app.model.gate.set()
        await stuck
        assert await probes(app) == (200, 200, 200)


async def test_openapi_documents_classify_in_full(running: Start) -> None:
    async with running() as app:
        document = (await app.client.get("/openapi.json")).json()
        docs = await app.client.get("/docs")
    assert docs.status_code == 200
    post = document["paths"]["/classify"]["post"]
    assert set(post["requestBody"]["content"]) == {
        *("image/*", "application/octet-stream", "application/x-npy", "multipart/form-data", "application/json")
    }
    assert set(post["responses"]) == {
        *("200", "400", "404", "408", "413", "415", "422", "431", "500", "502", "503", "504")
    }
    assert {p["name"] for p in post["parameters"] if p["in"] == "query"} == {
        "model",
        "top_k",
        "threshold",
        "embedding",
        "head",
    }
    # A generated client can send only what is named here.
    told = (ROOT / "docs" / "http.md").read_text(encoding="utf-8").partition("Headers in: ")[2].partition("Out: ")[0]
    headers = set(re.findall(r"`(X-[\w-]+)`", told))
    assert len(headers) == 4
    assert {p["name"] for p in post["parameters"] if p["in"] == "header"} == headers
    routes = {route.path for route in (*app.app.routes, *admin_routes(app.service)) if isinstance(route, Route)}
    pages = {path for path in routes if path in ("/", "/docs", "/openapi.json") or path.startswith("/page/")}
    assert set(document["paths"]) == routes - pages
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))
    assert {operation["servers"][0]["url"] for operation in operations if "admin" in operation["tags"]} == {
        "http://localhost:8002"
    }
    references = set(_references(document))
    assert references <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert "#/components/schemas/ClassifyAnswer" in references


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for child in node.values() for ref in _references(child)]
    if isinstance(node, list):
        return [ref for child in node for ref in _references(child)]
    return []
