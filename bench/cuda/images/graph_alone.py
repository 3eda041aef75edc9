"""DALI's graph without the loader around it: what the decoder itself answers, for formats and bodies kept from it."""

from collections.abc import Sequence
from typing import Literal

from ....loaders import LoadResult, PreprocessSpec, geometry, validate
from ....loaders.decode.dali_graph import DaliGraph, DaliOptions, Region, Resample
from ....loaders.preprocess.orientation import stored_geometry

MAX_BATCH = 32


class GraphAlone:
    """Answers like a loader; no body is looked at beyond its header, none is turned upright.

    Raises:
        LoaderError: DALI is not installed, or cannot build the graph here.
    """

    def __init__(
        self,
        spec: PreprocessSpec,
        resample: Resample = "exact",
        *,
        device: Literal["cpu", "gpu"] = "cpu",
        device_id: int = 0,
        hw_decoder_load: float = 0.0,
    ) -> None:
        self._spec = spec
        options = DaliOptions(max_batch=MAX_BATCH, hw_decoder_load=hw_decoder_load, resample=resample)
        self._graph = DaliGraph(spec, options, device=device, device_id=device_id)

    def load(self, items: Sequence[bytes], /) -> LoadResult:
        """Pixels of all.

        Raises:
            DaliError: some body could not be decoded.
        """
        pixels = self._graph.run(items, [self._region(body) for body in items])
        return LoadResult(pixels, list(range(len(items))), {})

    def _region(self, body: bytes) -> Region:
        info = validate(body)
        target = stored_geometry(geometry(self._spec, info.width, info.height), 1)
        return Region.of(target, info.width, info.height)
