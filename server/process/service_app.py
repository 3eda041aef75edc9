"""Makes the app of a process: the service, its authentication and traces, and HTTP around them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from ..admin.app import admin_routes
from ..api.app import http_app
from ..api.openapi import openapi_document
from ..compat.routes import compat_routes
from ..config.settings import Settings
from ..repository.served_model import OpenModel, open_tried
from ..security.auth import Authenticator
from ..security.file_watcher import FileWatcher
from ..service.service import Service
from ..telemetry.tracer import Tracer


def create_app(
    settings: Settings,
    bundles: Mapping[str, Path],
    *,
    open_model: OpenModel = open_tried,
    on_prepared: Callable[[BaseException | None], None] | None = None,
    on_ended: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The app; its service is `app.state.service`. The models load once its lifespan starts, and its OpenAPI document,
    whose models take longer to build than all routes, is made when it is first asked for.

    Args:
        bundles: where each served model lies, by name; the first one is the default.
        open_model: opens a bundle as a warm model.
        on_prepared: called when the models are warm, or with why they are not.
        on_ended: called when the engine has ended though nobody stopped it.

    Raises:
        TracingError: traces are asked for and the packages are missing.
        ValueError: Vertex AI names paths that cannot be.
    """
    service = Service(settings, bundles, open_model=open_model, on_prepared=on_prepared, on_ended=on_ended)
    file_watcher = FileWatcher(service.metrics.reload_failing)
    auth = Authenticator(settings, service.metrics, file_watcher)
    tracer = Tracer.of(settings)
    if tracer is not None:
        service.metrics.collect_with(tracer.collect)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        file_watcher.start()
        yield
        file_watcher.stop()
        app.state.stopped_clean = await service.stop()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)

    app = http_app(service, auth, tracer=tracer, lifespan=lifespan, more=compat_routes(service, auth))
    app.openapi = lambda: openapi_document(app, admin_routes(service), settings, auth)  # type: ignore[method-assign]
    app.state.service, app.state.auth, app.state.tracer = service, auth, tracer
    app.state.file_watcher, app.state.stopped_clean = file_watcher, True
    return app
