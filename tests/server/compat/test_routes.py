"""Which routes there are, what holds on all of them, and SageMaker's, which are /classify by another name."""

import base64
import threading
from pathlib import Path
from typing import Any

import pytest

from milkweed.server.config.sources import SettingsError, load_settings, origins
from milkweed.server.security.keys import key_block, new_key

from ...support.bodies import as_json, files
from ...support.server_parts import Running, Start, broken, check_error, encoded, one_reason, until
from .conftest import ALL, HEALTH, PREDICT

INSTANCES = {"json": {"instances": [{"b64": base64.b64encode(encoded()).decode()}]}}
POSTS: dict[str, dict[str, Any]] = {
    "/predictions/held": {"content": encoded()},
    "/invocations": {"content": encoded()},
    "/v1/models/held:predict": INSTANCES,
    PREDICT: INSTANCES,
}
PROBES = ("/ping", HEALTH)
GETS = ("/models", "/v1/models/held")
ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"


async def test_what_is_not_named_is_404(running: Start, vertex_environment: object) -> None:
    async with running() as app:
        for path, options in POSTS.items():
            check_error(await app.client.post(path, **options), 404, "not_found", path[:20])
        for path in (*GETS, *PROBES):
            check_error(await app.client.get(path), 404, "not_found")
        assert (await app.client.get("/health")).json() == {"status": "ok"}
    paths = {
        "torchserve": POSTS.keys() - {"/predictions/held"},
        "kserve-v1": POSTS.keys() - {"/v1/models/held:predict"},
    }
    for name, others in paths.items():
        async with running(settings={"compat": name}) as app:
            assert {(await app.client.post(path, **POSTS[path])).status_code for path in others} == {404}


async def test_keys_hold_everywhere_but_on_probes(running: Start, vertex_environment: object, tmp_path: Path) -> None:
    key, file = new_key(), tmp_path / "keys.toml"
    file.write_text(key_block("camera", key) + "images_per_second = 0.1\nimage_burst = 5\n")
    async with running(settings={"compat": ALL, "api_keys": str(file)}) as app:
        for path in PROBES:
            assert (await app.client.get(path)).status_code == 200
        for path in GETS:
            assert (await app.client.get(path)).status_code == 401
            assert (await app.client.get(path, headers={"x-api-key": key})).status_code == 200
        refusals = [await app.client.post(path, **options) for path, options in POSTS.items()]
        assert {answer.status_code for answer in refusals} == {401}
        assert {answer.headers["www-authenticate"] for answer in refusals} == {'Bearer realm="milkweed"'}
        assert refusals[0].json()["type"] == "InvalidKeyException"
        assert [type(answer.json()["error"]) for answer in refusals[1:]] == [dict, str, str]
        for path, options in POSTS.items():
            assert (await app.client.post(path, headers={"x-api-key": key}, **options)).status_code == 200
        six = {"instances": INSTANCES["json"]["instances"] * 6}
        for _ in range(2):  # a full bucket may be overdrawn once
            late = await app.client.post(PREDICT, headers={"x-api-key": key}, json=six)
        assert (late.status_code, list(late.json())) == (429, ["error"])
        assert int(late.headers["retry-after"]) > 1


async def test_readiness_and_drain_hold(running: Start, vertex_environment: object) -> None:
    gate = threading.Event()
    async with running(settings={"compat": ALL}, wait=False, open_gate=gate) as app:
        for path in (*PROBES, "/v1/models/held"):
            assert (await app.client.get(path)).status_code == 503
        for path, options in POSTS.items():
            early = await app.client.post(path, **options)
            assert early.status_code == 503
            assert early.headers["retry-after"] == "1"
        gate.set()
    async with running(settings={"compat": ALL}) as app:
        assert {(await app.client.get(path)).status_code for path in PROBES} == {200}
        app.service.begin_drain()
        for path, options in POSTS.items():
            assert (await app.client.post(path, **options)).status_code == 200
        assert {(await app.client.get(path)).status_code for path in PROBES} == {503}
        app.service.stop_accepting()
        async with one_reason(app, "draining", len(POSTS)):
            assert {(await app.client.post(path, **options)).status_code for path, options in POSTS.items()} == {503}


async def test_the_limits_of_bytes_and_of_the_queue_hold(running: Start, vertex_environment: object) -> None:
    limits = {"max_image_bytes": 2000, "max_body_bytes": 4000, "max_queue_images": 1, "max_images_per_request": 1}
    async with running(settings={"compat": ALL, **limits}) as app:
        for path in POSTS:
            assert (await app.client.post(path, content=bytes(5000))).status_code == 413
        running_one = await app.hold()
        queued = app.begin()
        await until(lambda: app.service.scheduler.depth == 1)
        assert {(await app.client.post(path, **options)).status_code for path, options in POSTS.items()} == {503}
        app.model.gate.set()
        assert [(await task).status_code for task in (running_one, queued)] == [200, 200]


async def test_metrics_name_the_route_as_the_router_does(app: Running) -> None:
    def count(family: str, **labels: str) -> float:
        return app.value(f"http_request_{family}_count", **labels)

    for path, options in POSTS.items():
        assert (await app.client.post(path, **options)).status_code == 200
    assert (await app.client.get("/v1/models/held")).status_code == 200
    routes = {"/predictions/{name}": "raw", "/v1/models/{name}:predict": "json", "/invocations": "raw", PREDICT: "json"}
    for route, form in routes.items():
        assert count("duration_seconds", route=route, method="POST", code="200") == 1, route
        assert count("body_bytes", route=route, format=form) == 1
    assert count("duration_seconds", route="/v1/models/{name}", method="GET", code="200") == 1
    assert count("body_bytes", route="/classify", format="raw") == 0


async def test_the_document_has_the_routes_that_are_on(app: Running) -> None:
    document, page = (await app.client.get("/openapi.json")).json(), (await app.client.get("/docs")).text
    assert {"post", "put"} == document["paths"]["/predictions/{name}/{version}"].keys()
    identifiers = [each["operationId"] for item in document["paths"].values() for each in item.values()]
    assert len(set(identifiers)) == len(identifiers)
    for path in ("/ping", "/invocations", "/v1/models/{name}:predict", PREDICT, HEALTH):
        assert path in page


async def test_sagemakers_invocations_are_classify(app: Running) -> None:
    post, image = app.client.post, encoded("JPEG", seed=3)
    x_image = {"content-type": "application/x-image"}  # what its own image classifiers are sent
    for options in (
        *({"content": image}, {"content": image, "headers": x_image}),
        *({"files": files(image, broken())}, {"json": as_json(image)}),
    ):
        expected, answer = await post("/classify", **options), await post("/invocations", **options)
        assert (answer.status_code, answer.json()["results"]) == (200, expected.json()["results"])
    said = {ATTRIBUTES: "c000b4f9-df62-4c85-a0bf-7c525f9104a4, model=other,top_k=2", "content-type": "image/jpeg"}
    other = (await post("/invocations", content=image, headers=said)).json()
    assert (other["model"], len(other["results"][0]["predictions"])) == ("other", 2)
    lines = await post("/invocations", content=image, headers={"accept": "application/x-ndjson"})
    assert len(lines.text.splitlines()) == 2


@pytest.mark.parametrize(
    ("said", "status", "code", "words"),
    [
        ("model=x", 404, "unknown_model", ("'x'", "held, other")),
        ("top=3", 400, "bad_request", ("custom attribute 'top'", "model, top_k, threshold")),
        ("top_k=3,top_k=3", 400, "bad_request", ("custom attribute top_k is given twice",)),
        ("top_k=0", 400, "bad_request", ("top_k is '0'",)),
        ("top_k=2=3", 400, "bad_request", ("top_k is '2=3'",)),
    ],
)
async def test_sagemakers_attributes_are_refused_by_name(
    app: Running, said: str, status: int, code: str, words: tuple[str, ...]
) -> None:
    async with one_reason(app, code):
        answer = await app.client.post("/invocations", content=encoded(), headers={ATTRIBUTES: said})
    check_error(answer, status, code, *words)


VERTEX = {"AIP_HEALTH_ROUTE": "/alive", "AIP_PREDICT_ROUTE": "/predict"}


@pytest.mark.parametrize(
    ("changed", "compat", "words"),
    [
        ({"AIP_PREDICT_ROUTE": "/classify"}, "vertex", "/classify is a path of this server"),
        ({"AIP_PREDICT_ROUTE": "/readyz"}, "vertex", "/readyz is a path of this server"),
        ({"AIP_PREDICT_ROUTE": "/page/x"}, "vertex", "/page/x is a path of this server"),
        ({"AIP_PREDICT_ROUTE": "/v2/models/x/infer"}, "vertex", "/v2/models/x/infer is a path"),
        ({"AIP_PREDICT_ROUTE": "/v1/models/x:predict"}, "vertex,kserve-v1", "/v1/models/x:predict is a path"),
        ({"AIP_PREDICT_ROUTE": "/ping"}, "vertex,sagemaker", "/ping is a path"),
        ({"AIP_HEALTH_ROUTE": "/livez"}, "vertex", "/livez is a path of this server already; for health it may be /he"),
        ({"AIP_HEALTH_ROUTE": "/predict"}, "vertex", "AIP_HEALTH_ROUTE and AIP_PREDICT_ROUTE are both /predict"),
    ],
)
async def test_a_path_of_vertex_that_is_ours_is_refused_at_the_start(
    running: Start, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], compat: str, words: str
) -> None:
    for name, value in (VERTEX | changed).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=words) as caught:
        async with running(settings={"compat": compat}):
            pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("health", ["/health", "/v2/health/ready", "/ping"])
async def test_vertex_may_name_a_probe_of_ours(running: Start, monkeypatch: pytest.MonkeyPatch, health: str) -> None:
    for name, value in (VERTEX | {"AIP_HEALTH_ROUTE": health}).items():
        monkeypatch.setenv(name, value)
    async with running(settings={"compat": "vertex,sagemaker"}) as app:
        assert (await app.client.get(health)).status_code == 200
        assert (await app.client.post("/predict", **INSTANCES)).status_code == 200


def test_vertex_names_the_port_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (VERTEX | {"AIP_HTTP_PORT": "7080", "MILKWEED_COMPAT": "sagemaker"}).items():
        monkeypatch.setenv(name, value)
    assert load_settings().port == 8000
    monkeypatch.setenv("MILKWEED_COMPAT", "sagemaker,vertex")
    assert (load_settings().port, origins()["port"]) == (7080, "AIP_HTTP_PORT")
    assert (load_settings({"port": "7080"}).port, origins({"port": "7080"})["port"]) == (7080, "--port")
    with pytest.raises(SettingsError, match="port = 8000 and AIP_HTTP_PORT = 7080"):
        load_settings({"port": 8000})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"MILKWEED_COMPAT": "torchserve,tfserving"}, ("MILKWEED_COMPAT = 'torchserve,tfserving'", "kserve-v1")),
        ({"MILKWEED_COMPAT": "off,vertex"}, ("MILKWEED_COMPAT = 'off,vertex'",)),
        ({"AIP_HEALTH_ROUTE": None}, ("AIP_HEALTH_ROUTE is not set",)),
        ({"AIP_PREDICT_ROUTE": "predict"}, ("AIP_PREDICT_ROUTE = 'predict'", "/predict")),
        ({"AIP_PREDICT_ROUTE": "/a/{x}"}, ("AIP_PREDICT_ROUTE = '/a/{x}'",)),
        ({"AIP_PREDICT_ROUTE": "/a/"}, ("AIP_PREDICT_ROUTE = '/a/'",)),
        ({"AIP_HTTP_PORT": "0"}, ("AIP_HTTP_PORT = '0'", "1..65535")),
        ({"AIP_HTTP_PORT": "http"}, ("AIP_HTTP_PORT = 'http'", "1..65535")),
    ],
)
def test_what_the_environment_says_wrongly_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str | None], words: tuple[str, ...]
) -> None:
    for name, value in ({"MILKWEED_COMPAT": "vertex"} | VERTEX | changed).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
