"""What comes in with a request before it is queued: images with checked headers, and the caller that waits."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Receive

from ...loaders.errors import InputError, without_frames
from ...loaders.headers.info import ImageInfo
from ...loaders.headers.validate import validate
from ..errors import ServiceError
from ..http.body_budget import BudgetLease
from ..http.disconnect import cancel_on_disconnect
from ..repository.served_model import ServedModel
from ..telemetry.context import RequestContext

CheckedImage = tuple[bytes, ImageInfo] | InputError | ServiceError
"""An image that passed the check of its header, or why it did not."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that waits for an answer, and what its request may take.

    Args:
        receive: the ASGI channel on which it is seen to leave; None where its leaving cancels the task.
        lease: the memory that its request has of the body budget.
        charge: counts images against its limits; may raise ServiceError.
    """

    context: RequestContext
    receive: Receive | None
    lease: BudgetLease
    charge: Callable[[int], None]

    async def wait(self, waiter: "asyncio.Future[None]") -> None:
        """Wait until `waiter` is resolved. Raises ClientDisconnected where the client left first."""
        async with cancel_on_disconnect(waiter, self.receive, self.context.disconnect):
            await waiter


def check_image(image: bytes | ServiceError, model: ServedModel) -> CheckedImage:
    """Check an image's header before anything is queued; an error stays as it is."""
    if isinstance(image, ServiceError):
        return image
    try:
        return image, validate(image, model.limits)
    except InputError as error:
        return without_frames(error)
