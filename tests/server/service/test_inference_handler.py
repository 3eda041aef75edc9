"""A request keeps the models that it names, fails as its protocol says, and is over when its time is."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from milkweed.loaders.errors import InputError
from milkweed.server.errors import ServiceError
from milkweed.server.http.parser_threads import ParserThreads
from milkweed.server.repository.served_model import ServedModel
from milkweed.server.service.caller import Caller, CheckedImage
from milkweed.server.service.inference_handler import ChangeParams, InferenceHandler, Query
from milkweed.server.service.loaded_models import ModelLeases
from milkweed.server.service.params import ClassifyParams
from milkweed.server.telemetry.context import RequestContext

from ...support.server_parts import HeldModel, make_pipeline, served_model
from ...support.waiting import HANG_SECONDS

BAD = InputError("undecodable", "cut")


class Lease:
    """Stands for the memory of a request."""

    def take_for_answer(self, count: int) -> None:
        assert count > 0


class Steps:
    """Stands for sandbox and dispatcher; notes what is classified and counted, and which models are leased then."""

    def __init__(self) -> None:
        self.leases = ModelLeases(lambda key: None)
        self.decoded: Sequence[CheckedImage] | None = None  # what the sandbox makes of the images
        self.classified: list[Sequence[CheckedImage]] = []
        self.leased: set[str] = set()
        self.counted: Counter[str] = Counter()
        self.handler = InferenceHandler(self.leases, self, ParserThreads(), self, self)  # type: ignore[arg-type]

    async def fetch(self, images: list[CheckedImage], *_: Any) -> None:
        """None of them is a URL."""

    async def decode(self, images: list[CheckedImage], *_: Any) -> Sequence[CheckedImage]:
        return images if self.decoded is None else self.decoded

    async def classify(self, params: ClassifyParams, images: Sequence[CheckedImage], _: Caller) -> list[str]:
        self.classified.append(list(images))
        self.leased = set(self.leases._requests)
        return [params.model.name] * len(images)

    def count(self, _: ServedModel, outcomes: dict[str, int]) -> None:
        self.counted.update(outcomes)

    async def answer(
        self, params: ClassifyParams, query: Query[Any], *changes: ClassifyParams, refuse: bool = False
    ) -> Any:
        def charge(_: int) -> None:
            if refuse:
                raise ServiceError("rate_limited", "too many")

        async def read(change: ChangeParams) -> Query[Any]:
            for changed in changes:
                change(changed)
            return query

        caller = Caller(RequestContext([]), None, Lease(), charge)  # type: ignore[arg-type]
        return await self.handler.answer(params, caller, read)


def params_of(name: str) -> ClassifyParams:
    return ClassifyParams(served_model(name, make_pipeline(HeldModel())), 1, HANG_SECONDS)


def image() -> CheckedImage:
    return b"image", None  # type: ignore[return-value]


async def test_a_model_that_the_body_names_is_kept_until_the_answer() -> None:
    steps, default, named = Steps(), params_of("default"), params_of("named")
    answer = await steps.answer(default, Query([image()], lambda outcomes: outcomes), named)
    assert answer == ["named"]
    assert steps.leased == {default.model.key, named.model.key}
    assert not len(steps.leases)


@pytest.mark.parametrize("seen_by", ["header", "sandbox"])
@pytest.mark.parametrize("whole", [True, False])
async def test_a_bad_image_fails_the_request_where_its_protocol_answers_whole(whole: bool, seen_by: str) -> None:
    steps, images = Steps(), [image(), BAD]
    if seen_by == "sandbox":
        steps.decoded, images = images, [image(), image()]
    query: Query[Any] = Query(images, lambda outcomes: outcomes, whole)
    if not whole:
        assert await steps.answer(params_of("m"), query) == ["m", "m"]
        assert steps.classified == [[image(), BAD]]
        return
    with pytest.raises(ServiceError, match="image 1: cut") as error:
        await steps.answer(params_of("m"), query)
    assert error.value.code == BAD.code
    assert not steps.classified
    assert steps.counted == {"invalid": 1, "rejected": 1}


async def test_images_that_a_limit_refuses_are_counted() -> None:
    steps = Steps()
    with pytest.raises(ServiceError, match="too many"):
        await steps.answer(params_of("m"), Query([image()] * 3, lambda outcomes: outcomes), refuse=True)
    assert steps.counted == {"rejected": 3}
    assert not steps.classified


async def test_the_time_that_the_body_names_counts() -> None:
    steps, params = Steps(), params_of("m")

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    steps.decode = never  # type: ignore[assignment]
    with pytest.raises(ServiceError, match="no answer within 1 ms") as error:
        await steps.answer(params, Query([image()], lambda outcomes: outcomes), replace(params, timeout_seconds=1e-3))
    assert error.value.code == "deadline"
    assert not len(steps.leases)
