"""Linear layers in 8 bits: the definition, every impl of a CPU, and the sums of the CPU's own kernels."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from milkweed.kernels.chain_ir import Add, ChainOp, Gelu, LayerNorm, Problem, evaluate
from milkweed.kernels.cpu.assembly.assemble import assemble
from milkweed.kernels.cpu.build import build
from milkweed.kernels.cpu.factors import dense
from milkweed.kernels.cpu.instruction_sets import SETS, supported_sets
from milkweed.kernels.cpu.library import LIBRARY, ProgramRunner
from milkweed.kernels.cpu.program import Embed, Factor, Head, Program, Quantiser
from milkweed.kernels.cpu.row_operators import Norm
from milkweed.kernels.impls.quantized import quantized_impls
from milkweed.kernels.impls.torch_ops import EagerImpl
from milkweed.kernels.quantized import QuantizedDense, quantize, sums_of
from milkweed.kernels.tuning.chain import Chain
from milkweed.kernels.tuning.default_plan import untuned_chain
from milkweed.kernels.tuning.tuner import tune_chain

from .quantized_layers import quantized_layer

CPU = torch.device("cpu")
PROBLEM = Problem(CPU, torch.bfloat16, 2, 17)


def mlp(*, int8: bool = True) -> list[ChainOp]:
    norm = LayerNorm(torch.linspace(0.5, 2, 64), torch.linspace(-1, 1, 64), 1e-6)
    fc1, fc2 = quantized_layer(64, 176, int8=int8), quantized_layer(176, 64, int8=int8, seed=1, gelu=int8)
    return [norm, fc1, Gelu(), fc2, Add()]


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("gelu", [False, True])
def test_the_definition_is_that_of_integers(gelu: bool) -> None:
    layer, x = quantized_layer(64, 48, gelu=gelu), normal(5, 64)
    x8 = (x.numpy() / layer.step.double().numpy() + layer.zero.double().numpy()).round().clip(0, 255).astype(np.int64)
    sums = (x8 - layer.zero.numpy().astype(np.int64)) @ layer.weight.numpy().astype(np.int64).T
    want = torch.from_numpy(sums) * layer.scale.double() + layer.bias.double()
    torch.testing.assert_close(evaluate([layer], x), want, rtol=1e-5, atol=1e-5)


def test_rounding_to_8_bits_is_worth_what_a_step_is() -> None:
    for int8 in (True, False):
        layer = quantized_layer(64, 48, int8=int8)
        x = normal(50, 64).clamp(-3, 3)
        weight = layer.weight.double() * layer.scale.double()[:, None] / layer.step.double()
        want = F.linear(x, weight, layer.bias.double())
        assert float((evaluate([layer], x) - want).norm() / want.norm()) < 0.05


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("mode", ["tuned", "untuned"])
def test_every_impl_gives_the_definition(int8: bool, mode: str) -> None:
    chain = Chain(mlp(int8=int8))
    impls = [*quantized_impls(on_cpu=True), EagerImpl()]
    x, residual = (normal(2, 17, 64).to(torch.bfloat16) for _ in range(2))
    want = evaluate(chain.operators, x.double(), residual.double())
    if mode == "untuned":
        got = untuned_chain(chain, PROBLEM, impls)(x, residual)
        assert float((got.double() - want).norm() / want.norm()) < 2e-2
        return
    tuned = tune_chain(chain, PROBLEM, impls, measure=lambda call: 1.0 if "torch" in str(call) else 1e-6)
    assert not tuned.discarded
    assert tuned.plan.spans == ((0, 5),)
    assert float((tuned.chain(x, residual).double() - want).norm() / want.norm()) < 2e-2


@pytest.mark.parametrize("name", [each.name for each in SETS])
@pytest.mark.parametrize("zero", [128, 21])
def test_sums_are_those_of_the_cpu_kernels(name: str, zero: int) -> None:
    """A program of one layer, whose bias is the negative of the sums: it gives zeros where all sums are equal."""
    build()
    isa = next((each for each in supported_sets() if each.name == name), None)
    if isa is None:
        pytest.skip(f"this CPU has no {name}")
    rng, width = np.random.default_rng(0), 192
    most = min(isa.rounding.levels, isa.rounding.rms)
    weight = rng.integers(-int(most), int(most) + 1, (width, width)).astype(np.int8)
    x = rng.integers(-zero, 256 - zero, width).astype(np.float32)
    unit, zeros = torch.ones(width), torch.full((width,), float(zero))
    layer = QuantizedDense(torch.from_numpy(weight), unit, torch.zeros(width), unit, zeros)
    x8 = quantize(torch.from_numpy(x)[None], *layer.packed()[3:], torch.int8)
    sums = (sums_of(x8, layer.weight) + layer.packed()[2]).numpy()[0]
    assert np.abs(sums).max() > 1e4
    assert np.array_equal(sums, weight.astype(np.int64) @ x.astype(np.int64))

    def answer(bias: np.ndarray) -> np.ndarray:
        quantiser = Quantiser(np.ones(width), np.full(width, float(zero)))
        whole = dense(weight, bias, name="layer", adds=True)
        factor = Factor(**{**vars(whole), "quantiser": quantiser, "scale": np.ones((1, width))})
        embed = Embed(np.zeros((width, 3, 16, 16)), np.zeros(width), np.zeros((5, width)), 32)
        head = Head(None, dense(np.eye(width), np.zeros(width), name="head"))
        program = Program(embed, [Norm(np.zeros(width), x.astype(np.float64), 1e-6), factor], head)
        given: np.ndarray = ProgramRunner(assemble(program, isa), LIBRARY)(np.zeros((1, 3, 32, 32), np.float32))
        return given

    assert not answer(-sums.astype(np.float64)).any()
    assert answer(1 - sums.astype(np.float64)).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scale": 0.0}, "its scale has a value that is zero"),
        ({"scale": 1e-40}, "its scale has a value that is zero, negative or subnormal"),
        ({"scale": float("nan")}, "its scale has NaN or infinity"),
        ({"step": 0.0}, "its step has a value that is zero"),
        ({"step": float("inf")}, "its step has NaN or infinity"),
        ({"bias": float("nan")}, "its bias has NaN or infinity"),
        ({"zero": 256.0}, "its zero is not from 0 to 255"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_a_line(changes: dict[str, float], words: str) -> None:
    layer = quantized_layer(32, 16)
    for name, value in changes.items():
        values = getattr(layer, name).clone()
        values[3] = value
        given: dict[str, Any] = {**tensors(layer), name: values}
        with pytest.raises(ValueError, match=f"^{words}"):
            QuantizedDense(**given)


def tensors(layer: QuantizedDense) -> dict[str, Tensor]:
    return {name: getattr(layer, name) for name in ("weight", "scale", "bias", "step", "zero")}


@pytest.mark.parametrize(("inputs", "outputs"), list(itertools.permutations((16, 24))))
def test_widths_that_16_does_not_divide_are_refused(inputs: int, outputs: int) -> None:
    with pytest.raises(ValueError, match=f"16 does not divide its widths {inputs} and {outputs}"):
        quantized_layer(inputs, outputs)


def test_activations_that_saturate_are_counted() -> None:
    layer = quantized_layer(32, 16)
    x = torch.zeros(3, 32)
    assert layer.saturated(x) == 0
    x[0, 4], x[2, 7], x[1, 1] = 1e3, -1e3, float(layer.step[1]) * 127
    assert layer.saturated(x) == 2


def test_nan_stays_in_its_row() -> None:
    segment, x = mlp(), torch.randn(4, 17, 64).to(torch.bfloat16)
    problem = Problem(CPU, torch.bfloat16, 4, 17)
    runner = quantized_impls(on_cpu=True)[0].build(segment, problem)
    want = runner(x, x)
    x[2, 5] = float("nan")
    got = runner(x, x)
    assert torch.equal(got[[0, 1, 3]], want[[0, 1, 3]])
    assert got[2, 5].isnan().all()
