"""Brings a torch module into its serving form and runs it: on a CPU in lanes, on a GPU the whole batch at once.

Lanes are recorded graphs, so that they do not wait for each other's Python. On a GPU there is one lane, and a captured
graph where there is one.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..loaders.thread_clock import thread_cpu_seconds
from ..models.accounting import resident_bytes
from ..models.architectures.no_classifier import classifier_name
from ..models.bundle.config import BundleConfig, OutputMeaning
from ..models.serving.embedding import return_embedding
from ..models.serving.fused.report import FusionReport
from ..models.serving.prepare import prepare_for_inference
from .device import CPU, Device, keep_freed_memory
from .forward import Forward, LanePlan
from .options import InferenceOptions
from .pipeline import GPU_BATCH_SIZE
from .results import ForwardResult

if TYPE_CHECKING:
    from ..models.programs.compact import Activations
    from ..models.serving.cuda_graph import Capture, CudaGraphForward
    from ..models.serving.fused.eight_bits import EightBits
    from ..models.serving.torchscript import TorchScriptForward


logger = logging.getLogger("milkweed.opening")


NO_FUSED_KERNEL = "none of our fused kernels runs, since they take two-byte numbers"
"""What a forward in float32 loses on a GPU, in words for the log and the doctor."""


def prepare_model(
    model: nn.Module,
    config: BundleConfig,
    device: Device,
    dtype: str,
    size: int,
    options: InferenceOptions,
    activations: "Activations | None" = None,
) -> tuple[nn.Module, FusionReport | None, tuple[int, ...]]:
    """Bring a model into its serving form: packed on a CPU, fused and tuned for each batch size on a GPU.

    Args:
        model: as `load_bundle` gives it; it is used up.
        size: side of the model's input, px.
        activations: the maxima by which a bundle in int8 rounds inputs; a GPU computes its layers in 8 bits.

    Returns:
        What takes normalised images of the dtype on the device and returns logits; how its blocks were fused, if they
        were; the batch sizes to capture CUDA graphs for.
    """
    number_type: torch.dtype = getattr(torch, dtype)
    if device.type != "cuda":
        return prepare_for_inference(model, dtype=number_type, int8_layers=config.int8_layers), None, ()
    # A machine without a GPU pays for none of it, not even in memory.
    from ..models.programs.eight_bits import eight_bits_of
    from ..models.serving.cuda_graph import batch_buckets

    batch_sizes = batch_buckets(options.max_batch_size or GPU_BATCH_SIZE)
    graphs = batch_sizes if options.cuda_graphs else ()
    if options.fusion == "off":
        return prepare_for_inference(model, dtype=number_type), None, graphs
    if dtype == "float32":
        logger.warning("dtype float32 on %s: %s", device, NO_FUSED_KERNEL)
    eight_bits = eight_bits_of(model, size, activations, number_type) if config.int8_layers else None
    return model, _fused(model, device, number_type, size, options, batch_sizes, eight_bits), graphs


def _fused(
    model: nn.Module,
    device: Device,
    dtype: torch.dtype,
    size: int,
    options: InferenceOptions,
    batch_sizes: Sequence[int],
    eight_bits: "EightBits | None",
) -> FusionReport:
    """Fuse a model in place, and log what of an int8 bundle is not computed in 8 bits."""
    from ..models.serving.fused.fuse import fuse
    from ..models.serving.fused.tuning import Tuning, open_cache

    folder = None if options.tuning_cache == "auto" else Path(options.tuning_cache)
    report = fuse(
        model,
        device=device.for_torch,
        dtype=dtype,
        image_size=size,
        batch_sizes=batch_sizes,
        tuning=Tuning(options.tuning, open_cache(device.for_torch, options.tuning, folder)),
        eight_bits=eight_bits,
    )
    for note in report.int8_notes:
        logger.info("int8 on %s: %s", device, note)
    torch.cuda.empty_cache()  # what measuring needed and serving does not
    return report


def torch_forward(
    model: nn.Module,
    config: BundleConfig,
    plan: LanePlan,
    device: Device,
    dtype: str,
    options: InferenceOptions,
    activations: "Activations | None" = None,
) -> "TorchForward":
    """Make the forward of a model as `load_bundle` gives it; it is used up."""
    size, classifier = int(config.preprocess["size"]), classifier_name(model)
    prepared, fusion, graphs = prepare_model(model, config, device, dtype, size, options, activations)
    prepared = prepared.to(device.for_torch)
    blank = torch.zeros(1, 3, size, size, dtype=getattr(torch, dtype), device=device.for_torch)
    width = return_embedding(prepared, classifier, config.num_classes, blank)
    return TorchForward(
        prepared,
        plan,
        device=device,
        dtype=dtype,
        size=size,
        graph_batch_sizes=graphs,
        cpu_graphs=options.cpu_graphs and not options.one_shot,
        fusion=fusion,
        output_meaning=config.output_meaning,
        embedding_width=width,
    )


class TorchForward(Forward):
    """A model on its device, ready to run: its graphs are captured or recorded here, so that serving never pays for it.

    Args:
        model: takes normalised images of `dtype` and returns logits.
        plan: how batches are cut.
        size: side of the model's input, px.
        graph_batch_sizes: batch sizes to capture CUDA graphs for; none on a CPU.
        cpu_graphs: record the forward as a TorchScript graph where it runs in micro-batches.
        capture: makes a CUDA graph; tests bring their own.
        fusion: how the model was fused; None where it was not.
        output_meaning, embedding_width: see `Forward`; the model returns the embedding before its logits.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: LanePlan,
        *,
        device: Device = CPU,
        dtype: str,
        size: int,
        graph_batch_sizes: Sequence[int] = (),
        cpu_graphs: bool = False,
        capture: "Capture | None" = None,
        fusion: FusionReport | None = None,
        output_meaning: OutputMeaning = "softmax",
        embedding_width: int = 0,
    ) -> None:
        self._prepare(plan, dtype, size, output_meaning, embedding_width)
        self.device, self._torch_device = device, torch.device(str(device))
        self._dtype: torch.dtype = getattr(torch, dtype)
        self.resident_bytes, self.fusion = resident_bytes(model), fusion
        self._module = _Outputs(model.to(self._torch_device), output_meaning, embedding_width)
        self._compute: Callable[[Tensor], Tensor] = self._module
        if device.type == "cpu":
            keep_freed_memory()  # a model takes the same memory for every image
        if graph_batch_sizes:
            self.cuda_graphs = self._captured(graph_batch_sizes, capture)
        elif cpu_graphs and plan.micro_batch:
            self.traced = self._compute = self._traced()

    def _run(self, pixels: NDArray[np.float32] | Tensor) -> ForwardResult:
        images = torch.as_tensor(pixels)
        return self._run_in_lanes(images) if self.plan.micro_batch else self._run_whole(images)

    def joined(self, parts: Sequence[Any], ready: Iterable[torch.cuda.Event] = ()) -> Tensor:
        for event in ready:
            torch.cuda.current_stream(self._torch_device).wait_event(event)
        tensors = [torch.as_tensor(part) for part in parts]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def best(self, probabilities: Any, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        scores, indices = torch.as_tensor(probabilities).topk(k)
        return indices.cpu().numpy(), scores.cpu().numpy()  # one copy to the host each

    def close(self) -> None:
        """Let the tensors go, also those of modules that only a collector would free: torch makes a class for each
        parametrized one, and a class refers to itself."""
        for module in self._module.modules():
            module._parameters.clear()
            module._buffers.clear()

    def on_host(self, values: Tensor | NDArray[np.float32]) -> NDArray[np.float32]:
        return values.float().cpu().numpy() if isinstance(values, Tensor) else values

    def _captured(self, batch_sizes: Sequence[int], capture: "Capture | None") -> "CudaGraphForward":
        # Imported here: a machine without a GPU pays for none of it, not even in memory.
        from ..models.serving.cuda_graph import CudaGraphForward

        shape = (3, self.size, self.size)
        return CudaGraphForward(
            self._on_device, device=self._torch_device, image_shape=shape, batch_sizes=batch_sizes, capture=capture
        )

    def _traced(self) -> "TorchScriptForward":
        from ..models.serving.torchscript import TorchScriptForward

        return TorchScriptForward(self._module, (self.plan.micro_batch, 3, self.size, self.size), self._dtype)

    def _on_device(self, images: Tensor) -> Tensor:
        """Normalised float32 images (n, 3, S, S) on the device -> (n, num_classes), float32."""
        return cast(Tensor, self._module(images.to(self._dtype)))

    def _run_whole(self, pixels: Tensor) -> ForwardResult:
        started = thread_cpu_seconds()
        with torch.inference_mode():
            if self.cuda_graphs is not None:
                outputs, padding = self.cuda_graphs(pixels), self.cuda_graphs.padding(len(pixels))
            else:
                outputs, padding = self._on_device(pixels.to(self._torch_device, non_blocking=True)), 0
            if self.device.type == "cuda":
                # So that the stage's time is the work's, not the launch's.
                torch.cuda.synchronize(self._torch_device)
        return self._result(outputs, padding, thread_cpu_seconds() - started)

    def _run_lane(
        self, chunks: Sequence[Tensor], sizes: Sequence[int], results: list[Any], turns: Iterator[int]
    ) -> float:
        started = thread_cpu_seconds()
        # A property of the calling thread, which may be the one that trains a model: set back, for a microsecond.
        before = torch.get_num_threads()
        torch.set_num_threads(self.plan.threads)
        try:
            with torch.inference_mode():
                for turn in turns:
                    chunk = chunks[turn]
                    images = _filled_up(chunk, sizes[turn]).to(self._dtype)
                    results[turn] = self._compute(images)[: len(chunk)]
        finally:
            torch.set_num_threads(before)
        return float(thread_cpu_seconds() - started)


class _Outputs(nn.Module):
    """Images of the model's type to embeddings, where it returns them, and probabilities, or logits where no softmax
    makes answers, in float32."""

    def __init__(self, model: nn.Module, output_meaning: OutputMeaning, embedding_width: int) -> None:
        super().__init__()
        self.model, self.output_meaning, self.embedding_width = model, output_meaning, embedding_width

    def forward(self, images: Tensor) -> Tensor:
        outputs = cast(Tensor, self.model(images)).float()
        if self.output_meaning != "softmax":
            return outputs
        probabilities = outputs[:, self.embedding_width :].softmax(-1)
        return (
            torch.cat([outputs[:, : self.embedding_width], probabilities], 1) if self.embedding_width else probabilities
        )

    def extra_repr(self) -> str:
        # By which TorchScriptForward tells graphs apart.
        return f"output_meaning={self.output_meaning}, embedding_width={self.embedding_width}"


def _filled_up(chunk: Tensor, size: int) -> Tensor:
    """The chunk with zero images added up to `size`."""
    missing = size - len(chunk)
    if not missing:
        return chunk
    return torch.cat([chunk, chunk.new_zeros((missing, *chunk.shape[1:]))])
