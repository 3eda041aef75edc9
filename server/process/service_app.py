"""Puts the app together: the service, who may ask, traces, and HTTP around them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from ..api.app import http_app
from ..config.settings import Settings
from ..repository.served_model import OpenModel, open_model
from ..security.auth import Authenticator
from ..security.file_watcher import FileWatch
from ..service.service import Service
from ..telemetry.tracer import Tracer


def create_app(
    settings: Settings,
    bundles: Mapping[str, Path],
    *,
    open_model: OpenModel = open_model,
    on_prepared: Callable[[BaseException | None], None] | None = None,
    on_ended: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The app; its service is `app.state.service`. The models load once its lifespan starts.

    Args:
        bundles: where each served model lies, by name; the first one is the default.
        open_model: makes a warm model of a bundle.
        on_prepared: called when the models are warm, or with why they are not.
        on_ended: called when the engine has ended though nobody stopped it.

    Raises:
        TracingError: traces are asked for and the packages are missing.
    """
    service = Service(settings, bundles, open_model=open_model)
    watch = FileWatch(service.metrics.reload_failing)
    gate = Authenticator(settings, service.metrics, watch)
    tracer = Tracer.of(settings)
    if tracer is not None:
        service.metrics.collect_with(tracer.collect)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start(on_prepared, on_ended)
        watch.start()
        yield
        watch.stop()
        app.state.stopped_clean = await service.stop()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)

    app = http_app(service, gate, tracer=tracer, lifespan=lifespan)
    app.state.service, app.state.gate, app.state.watch, app.state.tracer = service, gate, watch, tracer
    app.state.stopped_clean = True
    return app
