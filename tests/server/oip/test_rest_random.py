"""Random documents, sizes and bytes under /v2 are never our fault."""

import asyncio
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ...support.server_parts import Start, encoded
from . import rest_client as oip

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
SIZES = st.integers(-2, 40) | st.integers(0, 2**40)
TENSORS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["image", "pixels", "x"]),
        "datatype": st.sampled_from(["BYTES", "UINT8", "FP32", "FP16"]),
    },
    optional={
        "shape": st.lists(SIZES, max_size=5) | ANYTHING,
        "data": st.lists(ANYTHING, max_size=4) | ANYTHING,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": SIZES, "encoding": ANYTHING}) | ANYTHING,
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {"inputs": st.lists(TENSORS, max_size=2) | ANYTHING},
    optional={
        "id": ANYTHING,
        "outputs": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["label", "score", "x"])}, optional={"parameters": ANYTHING}
            ),
            max_size=3,
        ),
        "parameters": st.dictionaries(st.sampled_from(["top_k", "threshold", "partial", "timeout"]), ANYTHING),
    },
)


async def test_random_requests_are_never_internal_errors(running: Start) -> None:
    image = encoded(size=(3, 2))
    pieces = st.sampled_from([image, oip.elements(image), b"\1", bytes(12), b""])
    async with running() as app:
        bodies: list[tuple[bytes, dict[str, str]]] = []

        @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(DOCUMENTS | ANYTHING, st.lists(pieces, max_size=2), st.integers(-3, 3), st.booleans())
        def collect(document: Any, tail: list[bytes], off: int, said: bool) -> None:
            text = json.dumps(document).encode()
            headers = {"inference-header-content-length": str(max(0, len(text) + off))} if said else {}
            bodies.append((text + b"".join(tail), headers))

        await asyncio.to_thread(collect)
        statuses = set()
        for body, headers in bodies:
            answer = await app.client.post(oip.URL, content=body, headers=headers)
            assert answer.status_code in (200, 400, 413, 415, 422), (body, headers, answer.text)
            statuses.add(answer.status_code)
            if answer.status_code != 200:
                assert list(answer.json()) == ["error"]
        assert app.value("requests_rejected_total", reason="internal") == 0
    assert 400 in statuses
