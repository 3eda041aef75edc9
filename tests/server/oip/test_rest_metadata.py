"""What clients ask under /v2 beside inference: metadata, configuration, statistics, the index."""

from ...support.server_parts import Running, Start, encoded, make_config, one_reason, until
from . import rest_client as oip


async def test_server_and_model_describe_themselves(running: Start) -> None:
    async with running(names=("held", "other")) as app:
        server = (await app.client.get("/v2")).json()
        model = (await app.client.get("/v2/models/held")).json()
        version = model["versions"][0]
        same = (await app.client.get(f"/v2/models/held/versions/{version}")).json()
        config = (await app.client.get(f"/v2/models/held/versions/{version}/config")).json()
        index = (await app.client.post("/v2/repository/index", json={"ready": True})).json()
    assert (server["name"], "binary_tensor_data" in server["extensions"]) == ("milkweed", True)
    assert model == same
    assert (model["name"], model["versions"], model["platform"]) == ("held", [make_config().version], "milkweed")
    assert model["inputs"] == [
        {"name": "image", "datatype": "BYTES", "shape": [-1]},
        {"name": "pixels", "datatype": "UINT8", "shape": [-1, -1, -1, 3]},
    ]
    assert [(o["name"], o["datatype"], o["shape"]) for o in model["outputs"]] == [
        ("label", "BYTES", [-1, -1]),
        ("index", "INT64", [-1, -1]),
        ("score", "FP32", [-1, -1]),
        ("probabilities", "FP32", [-1, 7]),
        ("embedding", "FP32", [-1, 3]),
        ("error", "BYTES", [-1]),
    ]
    assert config["max_batch_size"] == 0
    assert [(i["name"], i["data_type"], i["dims"]) for i in config["input"]] == [
        ("image", "TYPE_STRING", [-1]),
        ("pixels", "TYPE_UINT8", [-1, -1, -1, 3]),
    ]
    assert [(entry["name"], entry["state"]) for entry in index] == [("held", "READY"), ("other", "READY")]


async def test_unknown_names_and_versions_are_404(app: Running) -> None:
    for path, words in (
        ("/v2/models/cat", "no model 'cat'"),
        ("/v2/models/held/versions/1", "no version '1'"),
        ("/v2/models/held/versions/1/config", "no version '1'"),
        ("/v2/models/cat/stats", "no model 'cat'"),
    ):
        async with one_reason(app, "unknown_model"):
            answer = await app.client.get(path)
        assert answer.status_code == 404
        assert list(answer.json()) == ["error"]
        assert words in answer.json()["error"]
    ready = await app.client.get("/v2/models/cat/ready")
    assert (ready.status_code, list(ready.json())) == (404, ["error"])


async def test_statistics_count_images_batches_and_time(running: Start) -> None:
    async with running(names=("held", "idle")) as app:
        for _ in range(3):
            assert (await oip.infer(app, encoded(), encoded(seed=1))).status_code == 200
        await until(lambda: app.value("batch_size_count", model="held") == 3)
        whole = app.service.metrics.registry.get_sample_value(
            "milkweed_request_stage_duration_seconds_sum", {"model": "held", "stage": "forward"}
        )
        held, idle = (await app.client.get("/v2/models/stats")).json()["model_stats"]
        [same] = (await app.client.get("/v2/models/held/stats")).json()["model_stats"]
    assert held == same
    assert (held["inference_count"], held["execution_count"]) == (6, 3)
    times = held["inference_stats"]
    assert {name: times[name]["count"] for name in times} == dict.fromkeys(times, 3)
    assert times["compute_infer"]["ns"] == round(1e9 * whole)
    assert times["success"]["ns"] > times["compute_infer"]["ns"] > 0
    assert (idle["inference_count"], idle["inference_stats"]["success"]["count"]) == (0, 0)
