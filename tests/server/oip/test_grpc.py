"""inference.GRPCInferenceService over a socket where it succeeds: the values of REST and of /classify."""

import io

import numpy as np
from PIL import Image

from ...support.bodies import files as multipart_files
from ...support.server_parts import Running, Start, broken, encoded, make_config
from . import rest_client as oip
from .grpc_client import Client, arrays, calling


async def test_answers_are_those_of_classify(app: Running, client: Client) -> None:
    images = [encoded(seed=1), encoded("JPEG", seed=2)]
    files = multipart_files(*images)
    classified = await app.classify(files=files)
    raw = await client.ask("ModelInfer", client.infer(*images, id="seven"))
    typed = client.infer(*images)
    typed.inputs[0].contents.bytes_contents.extend(images)
    del typed.raw_input_contents[:]
    typed.inputs[0].parameters["binary_data_size"].int64_param = 7  # as KServe's client says it of raw contents
    by_contents = await client.ask("ModelInfer", typed)
    assert app.value("grpc_request_duration_seconds_count", method="ModelInfer", code="OK") == 2
    assert app.value("request_stage_duration_seconds_count", model="held", stage="forward") == 3
    assert app.value("images_total", model="held", outcome="ok") == 6
    assert app.service.body_budget.total == 0
    for answer in (raw, by_contents):
        oip.check_answer(arrays(answer), classified)
        assert (answer.model_name, answer.model_version) == ("held", make_config().version)
    assert (raw.id, by_contents.id) == ("seven", "")


async def test_an_alias_is_that_of_rest(running: Start) -> None:
    async with running(settings={"aliases": {"production": "held"}}) as app, calling(app) as client:
        answer = await client.ask("ModelInfer", client.infer(encoded(), model="production"))
        assert (answer.model_name, answer.model_version) == ("held", make_config().version)
        metadata = await client.ask("ModelMetadata", client.messages.ModelMetadataRequest(name="production"))
        assert metadata.name == "held"


async def test_pixels_raw_and_typed(app: Running, client: Client) -> None:
    image = encoded(seed=4)
    pixels = np.asarray(Image.open(io.BytesIO(image)))[None]
    classified = await app.classify(image)
    inputs = app.service.models["held"].pipeline.loader.load([image]).pixels[:1]
    answers = []
    for datatype, values, field in (("UINT8", pixels, "uint_contents"), ("FP32", inputs, "fp32_contents")):
        for raw in (True, False):
            request = client.messages.ModelInferRequest(model_name="held")
            tensor = request.inputs.add(name="pixels", datatype=datatype, shape=values.shape)
            if raw:
                request.raw_input_contents.append(values.tobytes())
            else:
                getattr(tensor.contents, field).extend(values.ravel().tolist())
            answers.append(await client.ask("ModelInfer", request))
    for answer in answers:
        oip.check_answer(arrays(answer), classified)


async def test_options_mean_what_they_mean_over_rest(app: Running, client: Client) -> None:
    request = client.infer(encoded(), broken())
    request.parameters["top_k"].int64_param = 2
    request.parameters["partial"].bool_param = True
    for name in ("probabilities", "score", "error"):
        request.outputs.add(name=name)
    request.outputs[1].parameters["classification"].int64_param = 1000  # all of them
    answer = await client.ask("ModelInfer", request)
    expected = oip.arrays(
        await oip.infer(
            app,
            encoded(),
            broken(),
            outputs=[
                {"name": "probabilities"},
                {"name": "score", "parameters": {"classification": 7}},
                {"name": "error"},
            ],
            top_k=2,
            partial=True,
        )
    )
    found = arrays(answer)
    assert list(found) == list(expected) == ["probabilities", "score", "error"]
    assert np.array_equal(found["probabilities"], expected["probabilities"], equal_nan=True)
    assert found["score"].tolist() == expected["score"].tolist()
    assert found["error"].tolist() == expected["error"].tolist()


async def test_metadata_is_that_of_rest(running: Start) -> None:
    async with running(names=("held", "other")) as app, calling(app) as client:
        rest = (await app.client.get("/v2/models/held")).json()
        config = (await app.client.get("/v2/models/held/config")).json()
        kinds = client.messages
        assert (await client.ask("ServerLive", kinds.ServerLiveRequest())).live
        assert (await client.ask("ServerReady", kinds.ServerReadyRequest())).ready
        assert (await client.ask("ModelReady", kinds.ModelReadyRequest(name="held"))).ready
        server = await client.ask("ServerMetadata", kinds.ServerMetadataRequest())
        model = await client.ask("ModelMetadata", kinds.ModelMetadataRequest(name="held"))
        configured = (await client.ask("ModelConfig", kinds.ModelConfigRequest(name="held"))).config
        index = await client.ask("RepositoryIndex", kinds.RepositoryIndexRequest())
        await client.ask("ModelInfer", client.infer(encoded()))
        stats = await client.ask("ModelStatistics", kinds.ModelStatisticsRequest(name="held"))
        every = await client.ask("ModelStatistics", kinds.ModelStatisticsRequest())
        app.service.begin_drain()
        assert not (await client.ask("ServerReady", kinds.ServerReadyRequest())).ready
        assert not (await client.ask("ModelReady", kinds.ModelReadyRequest(name="held"))).ready
        assert not (await client.ask("ModelReady", kinds.ModelReadyRequest(name="cat"))).ready
    assert {name: each.string_value for name, each in configured.parameters.items()} == {
        name: each["string_value"] for name, each in config["parameters"].items()
    }
    assert server.name == "milkweed"
    assert "binary_tensor_data" in server.extensions
    assert [(t.name, t.datatype, list(t.shape)) for t in (*model.inputs, *model.outputs)] == [
        (t["name"], t["datatype"], t["shape"]) for t in (*rest["inputs"], *rest["outputs"])
    ]
    assert [(i.name, i.data_type, list(i.dims), i.optional) for i in configured.input] == [
        ("image", 13, [-1], True),
        ("pixels", 2, [-1, -1, -1, 3], True),
    ]
    assert [(o.name, list(o.dims)) for o in configured.output] == [(o["name"], o["dims"]) for o in config["output"]]
    assert [(entry.name, entry.state) for entry in index.models] == [("held", "READY"), ("other", "READY")]
    assert (stats.model_stats[0].inference_count, stats.model_stats[0].inference_stats.success.count) == (1, 1)
    assert [entry.name for entry in every.model_stats] == ["held", "other"]
