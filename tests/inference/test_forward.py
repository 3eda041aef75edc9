"""What a GPU's forward brings to the service, tried on a CPU: graphs in the lanes, plans in /v1/models, a metric."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch import Tensor

from milkweed.inference.forward import Forward, LanePlan
from milkweed.inference.model_form import ForwardOptions, prepare_model
from milkweed.inference.pipeline import Pipeline
from milkweed.models.architectures.registry import create_model
from milkweed.models.serving.cuda_graph import Captured, ForwardFunction, GraphedForward
from milkweed.models.serving.fused.report import Fallback, FusionReport, PartReport, PlanReport
from milkweed.models.serving.pack import prepare_for_inference
from milkweed.server.api.schemas import ModelList
from milkweed.server.config.image_limits import image_limits
from milkweed.server.config.settings import Settings
from milkweed.server.process.service_app import create_app
from milkweed.server.repository.served_model import ServedModel, forward_options

CPU = torch.device("cpu")
WHOLE = LanePlan(0, 1, 0)
REPORT = FusionReport(
    "not built: run `make kernels`",
    (
        PartReport(
            *("mlp", "norm(4)+monarch(4>8)", 17, 12),
            (PlanReport(8, "0b01", ("dense", "torch"), 12.5, "measured"),),
            {"native_mlp": "not built: run `make kernels`"},
        ),
    ),
    (Fallback("library", "not built: run `make kernels`"), Fallback("block", "Odd: no rule")),
    2.5,
)


def small_vit() -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model(
        "deit_tiny_patch16_224", num_classes=50, embed_dim=48, depth=2, num_heads=3, img_size=32, patch_size=8
    )


def capture(forward: ForwardFunction, images: Tensor) -> Captured:
    """A capture that is a plain call into one place."""
    result = forward(images).clone()

    def replay() -> None:
        result.copy_(forward(images))

    return Captured(images, result, replay)


def refuse(forward: ForwardFunction, images: Tensor) -> Captured:
    raise RuntimeError("capture is not permitted")


def graphed(lanes: Forward, side: int, sizes: tuple[int, ...], how: Any = capture) -> GraphedForward:
    """Graphs in the lanes, as `Lanes.capture` makes them of CUDA."""
    graphs = GraphedForward(
        lanes.probabilities, device=CPU, image_shape=(3, side, side), batch_sizes=sizes, capture=how
    )
    lanes._graphs = graphs
    return graphs


def test_without_a_gpu_the_form_is_what_it_was_to_the_bit() -> None:
    options = ForwardOptions(tuning="force", tuning_cache="/nonexistent")
    form = prepare_model(small_vit(), device=CPU, dtype=torch.float32, size=32, max_batch_size=8, options=options)
    assert form.report is None
    assert form.graph_batch_sizes == ()
    x = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(form.model(x), prepare_for_inference(small_vit())(x))


SERVE_ON_A_CPU = """
import pathlib, sys
from milkweed.server import serve
from milkweed.server.repository.served_model import open_model
from milkweed.server.config.settings import Settings
from ..support import server_parts
open_model("demo", pathlib.Path(sys.argv[1]), Settings(device="cpu", lanes=1, threads_per_lane=1)).pipeline.close()
parts = ("milkweed.kernels.impls", "milkweed.kernels.native", "milkweed.models.serving.cuda_graph", "milkweed.models.serving.fused.fuse")
print([name for name in sys.modules if name.startswith(parts)])
"""


def test_without_a_gpu_not_even_the_modules_are_imported() -> None:
    demo = Path(__file__).resolve().parents[2] / "models" / "demo"
    command = [sys.executable, "-c", SERVE_ON_A_CPU, str(demo)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[]\n"


def test_lanes_run_whole_batches_through_graphs() -> None:
    model = prepare_for_inference(small_vit())
    lanes = Forward(model, WHOLE, device=CPU, dtype=torch.float32)
    x = torch.randn(7, 3, 32, 32)
    plain = lanes.run(x)
    graphed(lanes, 32, (1, 2, 4))
    forward = lanes.run(x)
    torch.testing.assert_close(forward.probabilities, plain.probabilities)
    assert (plain.padding, forward.padding) == (0, 1)  # 4 and 3, the latter in the bucket of 4
    lanes.close()


def served(name: str, settings: Settings, how: Any) -> ServedModel:
    model = server_parts.HeldModel()
    pipeline = Pipeline(
        model,
        num_classes=server_parts.CLASSES,
        size=server_parts.SIZE,
        loader=server_parts.make_pipeline(model).loader,
        plan=WHOLE,
        device=CPU,
        dtype=torch.float32,
        fusion=REPORT,
    )
    pipeline.graphs = graphed(pipeline.lanes, server_parts.SIZE, (1, 2, 4, 8), how)
    return ServedModel.of(
        name=name, config=server_parts.make_config(), pipeline=pipeline, limits=image_limits(settings), max_batch_size=8
    )


@pytest.mark.anyio
@pytest.mark.parametrize("how", [capture, refuse], ids=["captured", "not captured"])
async def test_models_listing_and_metrics_tell_plans_and_fallbacks(how: Any) -> None:
    app = create_app(
        Settings(),
        {"fused": Path("fused")},
        open_model=lambda name, path, settings: served(name, settings, how),
    )
    transport = httpx.ASGITransport(app=app)
    async with app.router.lifespan_context(app):
        service = app.state.service
        await server_parts.until(lambda: bool(service.models))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            answer = await client.get("/v1/models")
            classified = await client.post("/classify", content=server_parts.encoded())
    assert classified.status_code == 200
    listing = ModelList.model_validate(answer.json())
    plans = listing.models[0].kernel_plans
    assert plans is not None
    assert plans.fusion is not None
    assert plans.cuda_graphs is not None
    assert plans.fusion.parts[0].plans[0].engines == ["dense", "torch"]
    assert plans.fusion.parts[0].refused == {"native_mlp": "not built: run `make kernels`"}
    assert [fallback.kind for fallback in plans.fusion.fallbacks] == ["library", "block"]
    graphs_failed = how is refuse
    assert plans.cuda_graphs.batch_sizes == ([] if graphs_failed else [1, 2, 4, 8])
    assert (plans.cuda_graphs.reason is not None) == graphs_failed
    line = listing.models[0].kernels
    assert line.startswith("fused: mlp dense+torch; 2 fallbacks; ")
    assert ("no CUDA graphs (batch 8: capture is not permitted)" in line) == graphs_failed

    def fallbacks(kind: str) -> float | None:
        labels = {"model": "fused", "version": listing.models[0].version, "kind": kind}
        return service.metrics.registry.get_sample_value("milkweed_model_kernel_fallbacks", labels)

    counts = {kind: fallbacks(kind) for kind in ("library", "block", "engine", "graph")}
    assert counts == {"library": 1, "block": 1, "engine": 0, "graph": int(graphs_failed)}


def test_settings_say_what_they_say_of_the_forward() -> None:
    assert forward_options(Settings()) == ForwardOptions()
    chosen = Settings(fusion="off", tuning="force", tuning_cache="/tune", cuda_graphs=False)
    assert forward_options(chosen) == ForwardOptions("off", "force", "/tune", False)


@pytest.mark.parametrize(
    ("name", "value"), [("fusion", "on"), ("tuning", "maybe"), ("cuda_graphs", "perhaps"), ("tuning_cache", "")]
)
def test_settings_that_cannot_be_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        Settings(**{name: value})
