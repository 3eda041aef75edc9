"""Proposes structures for a search: budgets of milliseconds in those layers where a structure takes less of them.

A structured layer that is not trained is no candidate, but where one begins. Training takes minutes: so first the clock
says which layers would save time, then the error of the untrained model whether training can make up for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from torch import nn

from ...models.layers.layer_spec import LayerSpec
from ...models.layers.select import ROLES, in_a_block, linear_layer, replaceable_linears, select_linears
from ..measure import CandidateEvaluator
from ..recipe import OF_STRUCTURES, DistillationConfig, QuantizationConfig, Recipe, Structure
from ..selection import TargetError
from ..tokens import MOST_KL, screened_kl
from .latency import LayerTimes, Shape, shapes_of

PAYS = 0.02
"""Below this share of the model's time a structure in all layers of a shape is no gain that can be told from noise."""

LEAST_SAVED, MOST_SAVED = 0.5, 0.9
"""A budget saves at least and at most these shares of what half of the weights in all paying layers would save."""

MARGIN = 0.01
"""Share of the weights that is taken off beside what bytes ask for: scales and biases have bytes too."""

LEARNT = 0.25
"""A training of minutes leaves more than this of an untrained structured model's KL: DeiT-Tiny went from .75 to .60."""


@dataclass(frozen=True)
class Saving:
    """The Monarch structure of half of a shape's weights that saves most time.

    Args:
        share: of the whole model's time, negative where every structure takes longer.
        diagonal: the share that two diagonal blocks save.
    """

    shape: Shape
    spec: LayerSpec
    share: float
    diagonal: float | None = None

    def __str__(self) -> str:
        name = "low rank" if self.spec.nblocks == 1 else f"{self.spec.nblocks} blocks"
        diagonal = "" if self.diagonal is None else f" (block-diagonal: {100 * self.diagonal:.0f} %)"
        return f"{self.shape} by {100 * self.share:.0f} % with {name}{diagonal}"


def structured(evaluator: CandidateEvaluator, best: Recipe) -> list[Recipe]:
    """Return the recipes with structured layers that are worth a training: with all tokens, and with those merged that
    the fastest model so far merges. Where structures pay, where not, and what is left out is noted.

    Their milliseconds are those with which all tokens reach the speed that is asked for, as far as they can.

    Raises:
        TargetError: a structure is asked for by name, and cannot be had.
    """
    asked, note, baseline = "monarch" in evaluator.job.methods, evaluator.progress.note, evaluator.baseline
    rows = savings(baseline.model, evaluator.times) if evaluator.ours else []
    if not rows:
        why = "no layers that it divides" if evaluator.ours else "our own kernels, which compute it, cannot be used"
        if asked:
            raise TargetError(f"--try monarch: {why}")
        note(f"without Monarch: {why}")
        return []
    note(where_it_pays(rows, "int8" if evaluator.job.tries("int8") else "bfloat16"))
    paying = [row for row in rows if row.share >= PAYS]
    if paying and not asked and not _worth_it(evaluator, best, paying):
        note("Monarch: models that are as fast have less KL than its training would leave: none was trained")
        return []
    structure = budget(evaluator, best, paying)
    if structure is None:
        return []
    merged = min(evaluator.measured.items(), key=lambda item: min(item[1].ms.values()))[0].recipe.tokens
    plans = dict.fromkeys([best.tokens, merged])
    distillation = of_structures(len(baseline.training))
    return [replace(best, structure=structure, tokens=plan, distillation=distillation) for plan in plans]


def of_structures(images: int) -> DistillationConfig:
    """Return how structured layers are trained: gradually, where no step needs an image again.

    DeiT-Tiny for CIFAR-10 with Monarch MLPs after 500 steps of 64 images, each seen once: 71.6 % right, at once 69.7.
    With 250 photographs of ImageNet, seen 20 times, gradually was no better: KL 2.40, at once 2.34.
    """
    enough = images >= OF_STRUCTURES.steps * OF_STRUCTURES.batch_size
    return replace(OF_STRUCTURES, blend_fraction=0.33) if enough else OF_STRUCTURES


def smaller_by_structure(evaluator: CandidateEvaluator, best: Recipe, over: int) -> Recipe:
    """Return the recipe of Monarch layers that take `over` bytes less than the best one has.

    Raises:
        TargetError: no such layers.
    """
    model = evaluator.baseline.model
    names = _blocks_linears(model)
    weights = sum(linear_layer(model, name).weight.numel() for name in names)
    budget = 1 - over / (1 if best.quantization else 4) / max(weights, 1) - MARGIN
    if not 0 < budget < 1:
        raise TargetError(f"--try monarch: {weights:,} weights in linear layers cannot take {over:,} bytes less")
    int8 = QuantizationConfig(per_channel=True) if evaluator.ours and best.quantization else best.quantization
    roles = tuple(role for role, pattern in ROLES.items() if any(map(pattern.fullmatch, names)))
    structure = Structure(layers=roles, budget=round(budget, 3))
    return replace(
        best, structure=structure, quantization=int8, distillation=of_structures(len(evaluator.baseline.training))
    )


def _blocks_linears(model: nn.Module) -> list[str]:
    """Names of the layers that may become structured: MLPs, and what makes and reads attention."""
    return [name for name in replaceable_linears(model) if in_a_block(name)]


def _worth_it(evaluator: CandidateEvaluator, best: Recipe, paying: Sequence[Saving]) -> bool:
    """Whether no measured model is as fast as a structured one would be, with less KL than its training would leave.

    The KL of all layers together is more than the sum of those of each shape's. With half of the saving it is a
    quarter, as that of errors of half the size.
    """
    saved, batch = sum(row.share for row in paying), evaluator.job.batches[0]
    before = min((model.ms[batch] for model in evaluator.measurements(best)), default=inf)
    limits = {}
    for part in (1.0, 0.5):
        fast = [model for model in evaluator.measured.values() if model.ms[batch] <= (1 - part * saved) * before]
        limits[part] = min([MOST_KL, *(model.quality.kl.value for model in fast)])
    kl = 0.0
    for row in paying:
        kl += screened_kl(evaluator, Recipe(structure=probe(evaluator.baseline.model, row)))
        if all(LEARNT * part**2 * kl >= limit for part, limit in limits.items()):
            return False
    return True


def savings(model: nn.Module, times: LayerTimes) -> list[Saving]:
    """Return what the best structure saves in the layers of each shape.

    Raises:
        BackendError: our kernels do not compute the model.
    """
    rows = []
    for shape in shapes_of(model, _blocks_linears(model)):
        if table := times.saved(shape):
            spec = max((spec for spec in table if spec.kind == "monarch"), key=lambda spec: table[spec])
            diagonal = [saved for spec, saved in table.items() if spec.kind == "blockdiag"]
            rows.append(Saving(shape, spec, table[spec], *diagonal))
    return rows


def where_it_pays(rows: Sequence[Saving], precision: str) -> str:
    """Say in one line in which layers a structure takes less time than a dense one, and in which not."""
    pays, others = [row for row in rows if row.share >= PAYS], [row for row in rows if row.share < PAYS]
    parts = [f"takes off the model's time in {', '.join(map(str, pays))}"] if pays else []
    parts += [f"no faster than dense {precision} in {', '.join(str(row.shape) for row in others)}"] if others else []
    return f"Monarch, half of the weights: {'; '.join(parts)}" if parts else "Monarch: no layers that it divides"


def budget(evaluator: CandidateEvaluator, best: Recipe, paying: Sequence[Saving]) -> Structure | None:
    """Return a structure of the paying layers with a budget of milliseconds; None where there are none."""
    model, most = evaluator.baseline.model, sum(row.share for row in paying)
    layers = tuple(entry for row in paying for entry in _selected(model, row.shape))
    if not layers:
        return None
    names, target = select_linears(model, layers), evaluator.target_speedup
    cost = evaluator.times.cost(model, names)
    lacking = 0.0 if target is None else 1 - evaluator.speedup(best) / target
    saved = min(max(lacking, LEAST_SAVED * most), MOST_SAVED * most)
    share = round(1 - saved / sum(cost(name, None) for name in names), 3)
    return Structure(layers=layers, budget=share, cost="ms") if 0 < share < 1 else None


def probe(model: nn.Module, row: Saving) -> Structure:
    """Return the structure of one shape's layers alone, as it was timed."""
    return Structure(layers=_selected(model, row.shape), nblocks=row.spec.nblocks, rank=row.spec.rank)


def _selected(model: nn.Module, shape: Shape) -> tuple[str, ...]:
    """What selects the layers of a shape: a pattern, where it selects no others."""
    pattern = f"*.{shape.part}"
    return (pattern,) if tuple(select_linears(model, (pattern,))) == shape.names else shape.names
