"""What a loader says of its decoder reaches metrics, probes and /v1/models; who sends what reaches the loader."""

from typing import Any

from milkweed.loaders.base import LoaderHealth

from ...support.bodies import files as multipart_files
from ...support.server_parts import Start, broken, encoded, until


def loader_of(app: Any) -> Any:
    return next(iter(app.service.models.values())).pipeline.loader


async def test_a_decoder_that_is_lost_is_not_alive_but_still_served(running: Start) -> None:
    async with running() as app:
        assert app.value("decoder_healthy", model="held") == 1
        assert app.value("decoder_rebuilds_total", model="held") == 0
        loader_of(app).health = LoaderHealth(3, 96, 7, 2, "DALI cannot be built for the gpu: out of memory")
        assert app.value("decoder_healthy", model="held") == 0
        assert app.value("decoder_rebuilds_total", model="held") == 3
        assert app.value("decoder_lost_batch_images_total", model="held") == 96
        assert app.value("decoder_quarantined_images_total", model="held") == 7
        assert app.value("decoder_quarantined_sources", model="held") == 2
        live = await app.client.get("/livez")
        assert live.status_code == 503
        assert "the decoder of held is lost: DALI cannot be built" in live.json()["error"]["message"]
        assert (await app.client.get("/readyz")).status_code == 200
        assert (await app.classify()).status_code == 200
        app.service.begin_drain()
        assert (await app.client.get("/livez")).status_code == 200  # it ends anyway


async def test_the_decoder_of_each_image_is_counted(running: Start) -> None:
    async with running() as app:
        loader = loader_of(app)
        load = loader.load

        def mixed(items: Any, infos: Any = None, sources: Any = None) -> Any:
            result = load(items, infos, sources)
            result.decoders = ["dali" if row == 0 else "cpu" for row in range(len(result.ok))]
            return result

        loader.load = mixed
        files = multipart_files(*(broken(), *(encoded(seed=seed) for seed in (1, 2, 3))))
        assert (await app.classify(files=files)).status_code == 200
        await until(lambda: app.value("batch_size_count", model="held") == 1)
        assert app.value("decode_backend_images_total", backend="dali", format="PNG") == 1
        assert app.value("decode_backend_images_total", backend="cpu", format="PNG") == 2


async def test_the_loader_hears_who_sent_an_image(running: Start) -> None:
    async with running() as app:
        loader, heard = loader_of(app), []
        load = loader.load

        def listening(items: Any, infos: Any = None, sources: Any = None) -> Any:
            heard.extend(sources)
            return load(items, infos, sources)

        loader.load = listening
        await app.classify()
    assert heard == ["127.0.0.1"]  # what httpx says of itself
