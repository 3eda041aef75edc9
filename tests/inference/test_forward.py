"""What a GPU's forward brings to the service, tried on a CPU: graphs in the lanes, plans in /v1/models, a metric."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor

from milkweed.inference.backend import Candidate
from milkweed.inference.device import CPU, Device
from milkweed.inference.forward import LanePlan
from milkweed.inference.open import open_model
from milkweed.inference.options import InferenceOptions
from milkweed.inference.pipeline import Pipeline
from milkweed.inference.results import TopClasses
from milkweed.inference.torch_forward import NO_FUSED_KERNEL, TorchForward, prepare_model
from milkweed.models.architectures.registry import create_model
from milkweed.models.programs.int8 import calibrate, int8_storage
from milkweed.models.serving.cuda_graph import Captured, ForwardFunction
from milkweed.models.serving.fused.eight_bits import EightBits
from milkweed.models.serving.fused.report import Fallback, FusionReport, PartReport, PlanReport
from milkweed.models.serving.prepare import prepare_for_inference
from milkweed.server.api.schemas import ModelList
from milkweed.server.config.inference_options import inference_options
from milkweed.server.config.settings import Settings
from milkweed.server.process.service_app import create_app
from milkweed.server.repository.served_model import ServedModel

from ..support.server_parts import CLASSES, SIZE, HeldModel, encoded, make_config, make_pipeline, served_model, until
from ..support.waiting import HANG_SECONDS

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
WHOLE = LanePlan(0, 1, 0)
REPORT = FusionReport(
    "not built: make kernels",
    (
        PartReport(
            *("mlp", "norm(4)+monarch(4>8)", 17, 12),
            (PlanReport(8, "0b01", ("dense", "torch"), 12.5, "measured"),),
            {"native_mlp": "not built: make kernels"},
        ),
    ),
    (Fallback("library", "not built: make kernels"), Fallback("block", "Odd: no rule")),
    2.5,
    ("native_mlp:3", "triton"),
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


def test_without_a_gpu_the_form_is_what_it_was_to_the_bit() -> None:
    options = InferenceOptions(tuning="force", tuning_cache="/nonexistent")
    model, fusion, graph_batch_sizes = prepare_model(small_vit(), make_config(), CPU, "float32", 32, options)
    assert fusion is None
    assert graph_batch_sizes == ()
    x = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(model(x), prepare_for_inference(small_vit())(x))


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that is called a GPU's, where fusing does nothing."""
    properties = SimpleNamespace(name="NVIDIA H100", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr("milkweed.models.serving.fused.fuse.fuse", lambda *given, **more: REPORT)
    return Device("cuda", 0)


def test_a_gpus_forward_in_float32_is_warned_of(fake_gpu: Device, caplog: pytest.LogCaptureFixture) -> None:
    for dtype, told in (
        ("bfloat16", []),
        ("float16", []),
        ("float32", ["dtype float32 on cuda:0: " + NO_FUSED_KERNEL]),
    ):
        caplog.clear()
        assert prepare_model(small_vit(), make_config(), fake_gpu, dtype, 32, InferenceOptions())[1] is REPORT
        assert [record.getMessage() for record in caplog.records if record.name == "milkweed.opening"] == told


def test_an_unknown_quarantined_kernel_fails_the_start_on_a_gpu(
    fake_gpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILKWEED_QUARANTINE", "native_mpl")
    with pytest.raises(ValueError, match="MILKWEED_QUARANTINE = 'native_mpl': there is no such kernel"):
        prepare_model(small_vit(), make_config(), fake_gpu, "bfloat16", 32, InferenceOptions())


def test_an_int8_bundle_is_fused_in_8_bits_or_says_why_not(
    fake_gpu: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passed: list[EightBits | None] = []

    def fuse(model: torch.nn.Module, *, eight_bits: EightBits | None, **more: Any) -> FusionReport:
        passed.append(eight_bits)
        return replace(REPORT, int8_notes=() if eight_bits is None else tuple(eight_bits.notes))

    monkeypatch.setattr("milkweed.models.serving.fused.fuse.fuse", fuse)
    caplog.set_level("INFO", "milkweed.opening")
    activations = calibrate(small_vit(), 32, [torch.randn(4, 3, 32, 32)])
    config = replace(make_config(), storage=int8_storage(small_vit(), activations))
    for dtype, maxima in (("bfloat16", activations), ("bfloat16", None), ("float32", None)):
        prepare_model(small_vit(), config, fake_gpu, dtype, 32, InferenceOptions(), maxima)
    prepare_model(small_vit(), make_config(), fake_gpu, "bfloat16", 32, InferenceOptions())
    in_8_bits, without, wide, other = passed
    assert in_8_bits is not None
    assert len(in_8_bits.layers) == 8
    assert without is not None
    assert without.notes == ["not in 8 bits: all layers: the bundle has no activations to round inputs by"]
    assert wide is not None
    assert wide.notes == ["not in 8 bits: all layers: dtype float32"]
    assert other is None
    assert f"int8 on cuda:0: {without.notes[0]}" in caplog.text


@pytest.mark.parametrize(
    ("candidate", "device", "fusion", "computes"),
    [
        (Candidate("milkweed", "int8"), CPU, "auto", True),
        (Candidate("torch", "bfloat16"), Device("cuda", 0), "auto", True),
        (Candidate("torch", "bfloat16"), Device("cuda", 0), "off", False),
        (Candidate("torch", "float32"), Device("cuda", 0), "auto", False),
        (Candidate("torch", "bfloat16"), CPU, "auto", False),
    ],
)
def test_who_computes_a_program_in_int8(candidate: Candidate, device: Device, fusion: str, computes: bool) -> None:
    assert candidate.computes("int8", device, fusion) == computes


SERVE_ON_A_CPU = """
import pathlib, sys
from milkweed.server.process import serve
from milkweed.server.repository.served_model import open_model
from milkweed.server.config.settings import Settings, image_limits
open_model("demo", pathlib.Path(sys.argv[1]), Settings(device="cpu", lanes=1, threads_per_image=1)).pipeline.close()
parts = ("milkweed.kernels.impls", "milkweed.kernels.native", "milkweed.models.serving.cuda_graph",
         "milkweed.models.serving.fused.fuse")
print([name for name in sys.modules if name.startswith(parts)])
"""


def test_without_a_gpu_not_even_the_modules_are_imported() -> None:
    demo = Path(__file__).resolve().parents[2] / "models" / "demo"
    command = [sys.executable, "-c", SERVE_ON_A_CPU, str(demo)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_SECONDS)
    assert done.stdout == "[]\n"


def test_a_forward_on_a_cpu_has_the_c_library_keep_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr("milkweed.inference.torch_forward.keep_freed_memory", lambda: calls.append(True))
    TorchForward(prepare_for_inference(small_vit()), WHOLE, dtype="float32", size=32).close()
    assert calls == [True]


def test_whole_batches_run_through_graphs() -> None:
    model = prepare_for_inference(small_vit())
    x = torch.randn(7, 3, 32, 32)
    forwards = [
        TorchForward(model, WHOLE, dtype="float32", size=32, graph_batch_sizes=sizes, capture=capture)
        for sizes in ((), (1, 2, 4))
    ]
    plain, graphed = (forward.run(x) for forward in forwards)
    torch.testing.assert_close(graphed.probabilities, plain.probabilities)
    assert (plain.padding, graphed.padding) == (0, 1)  # 4 and 3, the latter in the bucket of 4
    sizes = (1, 2, 4)
    forwards.append(
        TorchForward(
            model, WHOLE, dtype="float32", size=32, graph_batch_sizes=sizes, capture=capture, output_meaning="sigmoid"
        )
    )
    sigmoids = forwards[-1].run(x).probabilities
    np.testing.assert_allclose(sigmoids, model(x).sigmoid().detach(), rtol=1e-5)
    index, score = forwards[-1].best(sigmoids, 3)
    assert np.array_equal(index, np.argsort(-sigmoids, 1)[:, :3])
    assert np.array_equal(score, np.take_along_axis(sigmoids, index, 1))
    for forward in forwards:
        forward.close()


def served(name: str, settings: Settings, how: Any) -> ServedModel:
    model = HeldModel()
    options = {"graph_batch_sizes": (1, 2, 4, 8), "capture": how, "fusion": REPORT}
    forward = TorchForward(model, WHOLE, dtype="float32", size=SIZE, **options)
    loader = make_pipeline(model).loader
    pipeline = Pipeline(loader, forward, num_classes=CLASSES)
    return served_model(name, pipeline, settings)


@pytest.mark.anyio
@pytest.mark.parametrize("how", [capture, refuse], ids=["captured", "not captured"])
async def test_models_listing_and_metrics_tell_plans_and_fallbacks(how: Any) -> None:
    app = create_app(
        Settings(), {"fused": Path("fused")}, open_model=lambda name, path, settings: served(name, settings, how)
    )
    transport = httpx.ASGITransport(app=app)
    async with app.router.lifespan_context(app):
        service = app.state.service
        await until(lambda: bool(service.models))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            answer = await client.get("/v1/models")
            classified = await client.post("/classify", content=encoded())
    assert classified.status_code == 200
    listing = ModelList.model_validate(answer.json())
    plans = listing.models[0].kernel_plans
    assert plans is not None
    assert plans.fusion is not None
    assert plans.cuda_graphs is not None
    assert plans.fusion.parts[0].plans[0].engines == ["dense", "torch"]
    assert plans.fusion.parts[0].refused == {"native_mlp": "not built: make kernels"}
    assert [fallback.kind for fallback in plans.fusion.fallbacks] == ["library", "block"]
    graphs_failed = how is refuse
    assert plans.cuda_graphs.batch_sizes == ([] if graphs_failed else [1, 2, 4, 8])
    assert (plans.cuda_graphs.reason is not None) == graphs_failed
    line = listing.models[0].kernels
    assert plans.fusion.quarantined == ["native_mlp:3", "triton"]
    assert line.startswith("fused: mlp dense+torch; quarantined native_mlp:3, triton; 2 fallbacks; ")
    assert ("no CUDA graphs (batch 8: capture is not permitted)" in line) == graphs_failed

    def fallbacks(kind: str) -> float | None:
        labels = {"model": "fused", "version": listing.models[0].version, "kind": kind}
        return service.metrics.registry.get_sample_value("milkweed_model_kernel_fallbacks", labels)

    counts = {kind: fallbacks(kind) for kind in ("library", "block", "engine", "graph")}
    assert counts == {"library": 1, "block": 1, "engine": 0, "graph": int(graphs_failed)}


def test_settings_become_inference_options() -> None:
    options = inference_options(Settings())
    forward = {"fusion": "auto", "tuning": "auto", "tuning_cache": "auto", "cuda_graphs": True, "cpu_graphs": True}
    assert {name: getattr(options, name) for name in forward} == forward
    chosen = {"fusion": "off", "tuning": "force", "tuning_cache": "/tune", "cuda_graphs": False, "cpu_graphs": False}
    options = inference_options(Settings(**chosen))
    assert {name: getattr(options, name) for name in chosen} == chosen


@pytest.mark.parametrize(
    ("name", "value"), [("fusion", "on"), ("tuning", "maybe"), ("cuda_graphs", "perhaps"), ("tuning_cache", "")]
)
def test_settings_that_cannot_be_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        Settings(**{name: value})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("fusion", ["auto", "off"])
def test_answers_are_the_cpus(fusion: str, dtype: str, tmp_path: Path) -> None:
    options = InferenceOptions(
        device="cuda",
        dtype=dtype,
        max_batch_size=8,
        fusion=fusion,  # type: ignore[arg-type]
        tuning_cache=str(tmp_path),
    )
    on_gpu, on_cpu = (open_model(DEMO, each).pipeline for each in (options, InferenceOptions(device="cpu")))
    graphs = on_gpu.forward_stage.cuda_graphs
    assert graphs is not None
    assert graphs.reason is None
    assert (on_gpu.fusion is not None) == (fusion == "auto")
    images = [encoded(seed=seed, size=(40, 30)) for seed in range(11)]
    for got, want in zip(on_gpu.classify(images, 1), on_cpu.classify(images, 1), strict=True):
        assert isinstance(got, TopClasses)
        assert isinstance(want, TopClasses)
        assert got.score[0] == pytest.approx(want.score[0], abs=3e-2)
    assert list(tmp_path.glob("*.json")) or fusion == "off"
    on_gpu.close()
    on_cpu.close()
