"""The clients against a server that runs, and `milkweed.load` beside them: one set of answers."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import milkweed
from milkweed.cli import main
from milkweed.client import AsyncClient, BadRequest, Client, DeadlineExceeded, MilkweedError, Prediction, UnknownModel
from milkweed.local import LocalModel
from milkweed.models.heads.embedding_head import parse_head

from ..models.heads.plain_head import expected, make_head
from .conftest import Serve


@pytest.fixture(scope="module")
def images() -> list[bytes]:
    """JPEGs of waves, each another; and one that is none."""
    y, x = np.mgrid[0:50, 0:70]
    encoded = []
    for seed in range(20):
        a, b, c = np.random.default_rng(seed).uniform(3, 30, 3)
        waves = np.stack([np.sin(x / a), np.cos(y / b), np.sin((x + y) / c)], -1)
        out = io.BytesIO()
        Image.fromarray((128 + 120 * waves).astype(np.uint8)).save(out, "JPEG", quality=90)
        encoded.append(out.getvalue())
    return [*encoded[:7], b"no image", *encoded[7:]]


@pytest.fixture(scope="module")
def model(tiny_bundle: Path) -> Any:
    with milkweed.load(tiny_bundle, device="cpu") as opened:
        yield opened


def plain(url: str, image: bytes, **params: Any) -> list[Prediction] | str:
    """What the server's own JSON says of an image."""
    document = httpx.post(f"{url}/classify", content=image, params=params).json()
    if "error" in document:
        return str(document["error"]["code"])
    return [Prediction(**each) for each in document["results"][0]["predictions"]]


def why(answer: Any) -> str | None:
    """The message of an error, without the formats, of which the user's own files may have more."""
    return answer.error and str(answer.error.message).partition(": expected one of")[0]


def said(answer: Any) -> list[Prediction] | str:
    return list(answer.predictions) if answer.error is None else str(answer.error.code)


def test_clients_and_local_models_give_the_servers_answers(server: Any, model: LocalModel, images: list[bytes]) -> None:
    want = [plain(server.url, image, top_k=3) for image in images]
    assert want[7] == "unsupported_format"
    assert len({str(each) for each in want}) == len(images)

    async def asked() -> list[Any]:
        async with AsyncClient(server.url, batch_size=5) as client:
            return await client.classify(images, top_k=3)

    with Client(server.url, batch_size=4) as client:
        found = client.classify(images, top_k=3)
        assert [answer.version for answer in found] == [model.version] * len(images)
        assert {"queue", "decode", "forward", "total"} <= set(found[0].stages)
        assert len({answer.request_id for answer in found}) == -(-len(images) // 4)
        assert client.models()[0].name == "tiny"
        assert client.ready()
        for several in (found, asyncio.run(asked()), model.classify(images, top_k=3)):
            assert [said(answer) for answer in several] == want
        assert list(map(why, found)) == list(map(why, model.classify(images)))


def test_embeddings_are_the_servers(server: Any, model: LocalModel, images: list[bytes]) -> None:
    good = images[:7]
    body = httpx.post(f"{server.url}/embed", files=[("i", ("a", image)) for image in good]).json()
    expected = np.array([result["embedding"] for result in body["results"]], np.float32)

    async def asked() -> Any:
        async with AsyncClient(server.url, batch_size=5) as client:
            return await client.embed(good), await client.embed(good[0])

    with Client(server.url, batch_size=4) as client:
        for rows in (client.embed(good), asyncio.run(asked())[0], model.embed(good)):
            np.testing.assert_array_equal(rows, expected)
        np.testing.assert_array_equal(client.embed(good[0]), expected[0])
        np.testing.assert_array_equal(asyncio.run(asked())[1], expected[0])
        normalised = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(client.embed(good, normalize=True), normalised, rtol=1e-6)
        answer = client.classify(good[0], embedding=True)
        np.testing.assert_array_equal(np.asarray(answer.embedding), expected[0])
        assert answer.predictions == client.classify(good[0]).predictions
        with pytest.raises(MilkweedError, match="unsupported_format"):
            client.embed(images)


def test_a_head_of_the_server_answers(
    serving: Serve, images: list[bytes], tiny_bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with milkweed.load(tiny_bundle, device="cpu") as opened:
        head, rows = make_head(4, opened.embedding_width), opened.embed(images[:6])
    file = tmp_path / "birds.safetensors"
    file.write_bytes(head.to_bytes())
    want = expected(head, rows)

    async def asked(url: str) -> Any:
        async with AsyncClient(url) as client:
            return await client.classify(images[:6], head="birds", top_k=4)

    with serving(heads=f"tiny.birds={file}") as server:
        url = server.wait_ready()
        with Client(url) as client:
            for answers in (client.classify(images[:6], head="birds", top_k=4), asyncio.run(asked(url))):
                for answer, row in zip(answers, want, strict=True):
                    assert (answer.head, answer.head_version) == ("birds", parse_head(head.to_bytes()).version)
                    scores = {each.index: each.score for each in answer.predictions}
                    np.testing.assert_allclose([scores[place] for place in range(4)], row, rtol=1e-4)
            assert (client.classify(images[0]).head, client.classify(images[0]).head_version) == ("", "")
            with pytest.raises(UnknownModel, match="unknown_head: model tiny has no head 'fish'; there are: birds"):
                client.classify(images[0], head="fish")
        (tmp_path / "a.jpg").write_bytes(images[0])
        capfd.readouterr()
        assert main(["classify", str(tmp_path / "a.jpg"), "--url", url, "--head", "birds", "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["results"][0]["predictions"][0]["index"] == want[0].argmax()


def test_one_image_however_it_is_given(server: Any, model: LocalModel, images: list[bytes], tmp_path: Path) -> None:
    want = plain(server.url, images[0])
    path = tmp_path / "a.jpg"
    path.write_bytes(images[0])
    opened = Image.open(path)
    with Client(server.url) as client:
        for given in (images[0], path, str(path), io.BytesIO(images[0]), opened, np.asarray(opened)):
            assert said(client.classify(given)) == want
            if not isinstance(given, io.BytesIO):
                assert said(model.classify(given)) == want


def test_the_servers_refusals_have_their_classes(server: Any, images: list[bytes]) -> None:
    with Client(server.url) as client:
        with pytest.raises(UnknownModel, match="no model 'other'; there are: tiny"):
            client.classify(images[0], model="other")
        with pytest.raises(BadRequest, match=r"top_k is '99': expected a whole number 1\.\.10"):
            client.classify(images[:3], top_k=99)
        with pytest.raises(MilkweedError) as caught:
            client.classify(images[7])
        assert (caught.value.status, caught.value.code) == (415, "unsupported_format")
        batch = io.BytesIO()
        np.save(batch, np.zeros((3, 8, 8, 3), np.uint8))
        with pytest.raises(MilkweedError, match="3 answers to 1 images: an array with a batch axis is several"):
            client.classify(batch.getvalue())
        assert client.classify(images[0], timeout=3600).error is None  # more than the server may be told


def test_a_served_limit_of_images_is_kept(serving: Any, model: LocalModel, images: list[bytes]) -> None:
    with serving(max_images_per_request=3) as small:
        with Client(small.wait_ready(), batch_size=16) as client:
            found = client.classify(images)
        small.terminate()
    assert [said(answer) for answer in found] == [said(answer) for answer in model.classify(images)]


def test_the_deadline_is_the_servers_too(server: Any, images: list[bytes]) -> None:
    with Client(server.url) as client, pytest.raises(DeadlineExceeded):
        client.classify(images[:8], timeout=0.0005)


def test_a_local_model_answers_as_a_server(model: LocalModel, images: list[bytes], tiny_bundle: Path) -> None:
    assert (model.name, model.num_classes) == ("tiny", 10)
    assert model.classify([]) == []
    assert len(model.classify(images[0]).predictions) == 5
    (lost,) = model.classify([tiny_bundle / "no.jpg"])
    assert str(lost.error) == "unreadable: cannot be read: No such file or directory"
    with pytest.raises(MilkweedError, match="unsupported_format: "):
        model.classify(b"no image")
    for top_k in (0, 11):
        with pytest.raises(ValueError, match=rf"top_k is {top_k}: expected 1\.\.10"):
            model.classify(images[0], top_k)
    with pytest.raises(ValueError, match=r"bundle .*/no: no such folder"):
        milkweed.load(tiny_bundle / "no")


def test_files_of_the_user_may_have_rare_formats(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), (200, 90, 20)).save(out, "TIFF")
    with milkweed.load(tiny_bundle, device="cpu") as model:
        assert len(model.classify(out.getvalue()).predictions) == 5
    monkeypatch.setenv("MILKWEED_FORMATS", "jpeg,png")
    with milkweed.load(tiny_bundle, device="cpu") as model, pytest.raises(MilkweedError, match="TIFF is not accepted"):
        model.classify(out.getvalue())


def test_a_closed_model_says_so(images: list[bytes], tiny_bundle: Path) -> None:
    model = milkweed.load(tiny_bundle, device="cpu")
    stream = model.stream(images * 10, top_k=1)
    next(stream)
    model.close()
    with pytest.raises(RuntimeError, match=r"the model .* is closed"):
        list(stream)
    with pytest.raises(RuntimeError, match=r"the model .* is closed"):
        model.classify(images[0])
    model.close()  # again


def test_a_stream_in_this_process_holds_two_batches(model: LocalModel, images: list[bytes]) -> None:
    read = 0

    def endless() -> Any:
        nonlocal read
        while True:
            read += 1
            yield images[0]

    stream = model.stream(endless(), top_k=1)
    next(stream)
    two_batches = read
    for number in range(1, 200):
        next(stream)
        assert read <= number + two_batches
    stream.close()  # type: ignore[attr-defined]
