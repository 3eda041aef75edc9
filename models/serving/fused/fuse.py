"""Turns a loaded model into its fused form: blocks on tuned chains, branches and performers on the compiled kernels.

A block that no rule knows keeps its own forward, and the report names it. The rest of the model is packed as usual.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar, cast

import torch
from torch import nn

from ....kernels.chain_ir import LayerNorm, Problem, SelfAttention
from ....kernels.impls.quarantine import VARIABLE, quarantined
from ....kernels.tuning.chain import Chain, CompiledChain
from ....kernels.tuning.verify import TuningError
from ...architectures.token_blocks import TokenBlock
from ...architectures.vitae.merging import MergingCell
from ...architectures.vitae.reduction import PerformerAttention, PerformerReduction, PyramidReduction
from ..prepare import fold_batch_norms, prepare_for_inference
from .add_norm import AddNorm, AddNormPart, join_halves, split_halves, unjoined
from .alternatives import Alternative, Bucketed, Part, choose
from .block import FusedBlock
from .branch import BranchPart, BranchResidual
from .chains import BlockChains, NotFusable, take_apart
from .device_kernels import DeviceKernels, device_kernels
from .eight_bits import EightBits
from .reduction import FusedPyramid, FusedReduction, PerformerPart
from .report import Fallback, FusionReport, PartReport, PlanReport
from .tokens import FirstTokens, FusedMergingCell, FusedTokenBlock, MergePart, MergeTokens, token_counts
from .tuning import Chosen, Tuning, refusals

logger = logging.getLogger("milkweed.fused")

Module = TypeVar("Module", bound=nn.Module)

BucketPlan = tuple[Alternative, PlanReport, dict[str, str]]
"""How a part runs at one bucket: the way, its report, and the impls that refuse it with the reason."""


def fuse(
    model: nn.Module,
    *,
    device: torch.device,
    dtype: torch.dtype,
    image_size: int,
    batch_sizes: Sequence[int],
    tuning: Tuning | None = None,
    kernels: DeviceKernels | None = None,
    eight_bits: EightBits | None = None,
) -> FusionReport:
    """Replace what can be fused, in place, and bring the model to its device in its serving form.

    Args:
        model: as `load_bundle` gives it: float32, on the CPU.
        image_size: side of its input, px.
        batch_sizes: the batch buckets that plans are made for.
        tuning: how plans are chosen; when None they are measured, and remembered by this process alone.
        kernels: the compiled kernels; those of `device` when None.
        eight_bits: of a bundle in int8, the layers that are computed in 8 bits.

    Returns:
        The report of what was fused. The model then takes normalised images (B, 3, S, S) of `dtype` on `device`.

    Raises:
        RuntimeError: the device no longer works.
    """
    started = time.perf_counter()
    model.eval().requires_grad_(False)
    fold_batch_norms(model)
    with torch.no_grad():
        tokens, sized = token_counts(model, image_size)
        batches, tuning = sorted(set(batch_sizes)), tuning or Tuning()
        names = {module: name for name, module in model.named_modules()}
        what = kernels or device_kernels(device), tokens, sized, names, eight_bits or EightBits({}, ())
        work = _Fusing(device, dtype, batches, tuning, *what)
        _replace(model, work)
        prepare_for_inference(model, dtype=dtype).to(device)
    report = work.report(time.perf_counter() - started)
    logger.info("%s", report.summary, extra={"event": report.as_json()})
    for fallback in report.fallbacks:
        logger.warning("%s falls back: %s", fallback.kind, fallback.reason)
    if report.quarantined:
        _tell_quarantine(report.quarantined)
    return report


@cache
def _tell_quarantine(names: tuple[str, ...]) -> None:
    """Log what is quarantined, once a process and not for each model and device."""
    logger.warning("quarantined (%s): %s", VARIABLE, ", ".join(names))


def _replace(parent: nn.Module, work: "_Fusing") -> None:
    """Replace the children of a module by their fused forms, and go on inside those that have none."""
    for name, child in list(parent.named_children()):
        count = work.tokens.get(child)
        fused = None if count is None else work.fuse(child, count)
        if fused is not None:
            setattr(parent, name, fused)
        else:
            _replace(child, work)


@dataclass
class _Fusing:
    """Fuses the modules of one model, and gathers what the report says.

    Args:
        tokens: number of output tokens for one image of each module that gives some.
        sized: the blocks that get sizes of tokens.
    """

    device: torch.device
    dtype: torch.dtype
    batch_sizes: Sequence[int]
    tuning: Tuning
    kernels: DeviceKernels
    tokens: Mapping[nn.Module, int]
    sized: Collection[nn.Module]
    names: Mapping[nn.Module, str]
    eight_bits: EightBits
    parts: dict[tuple[str, str, int], PartReport] = field(default_factory=dict)
    fallbacks: list[Fallback] = field(default_factory=list)

    def fuse(self, module: nn.Module, tokens: int) -> nn.Module | None:
        """The fused form of a module with `tokens` output tokens; None where it stays as it is."""
        if isinstance(module, PerformerReduction):
            return self._reduction(module, tokens)
        if isinstance(module, PyramidReduction):
            return FusedPyramid(module)
        if isinstance(module, PerformerAttention):  # T2T-ViT's, with no branch beside it
            return self._part(PerformerPart(self._placed(module), self.kernels), tokens)
        try:
            chains = take_apart(module)
            if chains is not None:
                chains = self.eight_bits.quantized(chains, self.names[module])
            if chains is not None and isinstance(module, TokenBlock):
                return self._token_block(module, chains)
            if chains is not None and isinstance(module, MergingCell):
                return self._merging_cell(module, chains, tokens)
            return None if chains is None else self._block(chains, tokens)
        except (NotFusable, TuningError, ValueError) as error:
            self._fall_back("block", f"{type(module).__name__}: {error}")
            return None

    def report(self, seconds: float) -> FusionReport:
        fallbacks = list(self.fallbacks)
        if self.kernels.refusal is not None:
            fallbacks.insert(0, Fallback("library", self.kernels.refusal))
        if not self.parts:
            fallbacks.append(Fallback("block", "the model has no block that there is a rule for"))
        notes = tuple(self.eight_bits.notes)
        parts = tuple(self.parts.values())
        return FusionReport(self.kernels.status, parts, tuple(fallbacks), seconds, quarantined(), notes)

    def _block(self, chains: BlockChains, tokens: int) -> FusedBlock:
        halves = self._chain("attention", chains.attention, tokens), self._chain("mlp", chains.mlp, tokens)
        attention, mlp = self._join(chains, *halves, tokens)
        cell = chains.cell
        if cell is None:
            return FusedBlock(attention, mlp)
        plain = BranchResidual(self._placed(cell.PCM), cell.class_token)
        return FusedBlock(attention, mlp, self._part(BranchPart(plain, self.kernels), tokens))

    def _token_block(self, block: TokenBlock, chains: BlockChains) -> nn.Module:
        before, behind, sized = self.tokens[block.norm1], self.tokens[block.norm2], block in self.sized
        if before == behind and not sized:
            return self._block(chains, before)
        norm, qkv, attention, proj, add = chains.attention.operators
        assert isinstance(attention, SelfAttention)
        first = self._chain("qkv", Chain([norm, qkv]), before)
        if block.read is not None:
            attend: nn.Module = FirstTokens(attention, block.read)
        else:
            attend = self._chain("attention", Chain([replace(attention, sized=sized)]), before)
        halves = BlockChains(Chain([proj, add]), chains.mlp)
        second = self._chain("proj", halves.attention, before if block.read is None else behind)
        mlp = self._chain("mlp", chains.mlp, behind)
        if block.merging is None or before == behind or block.read is not None:
            second, mlp = self._join(halves, second, mlp, behind)
            return FusedTokenBlock(before, sized, first, attend, second, mlp, read=block.read)
        plain = MergeTokens(attention, chains.mlp.widths[0], block.merging.protect, before - behind, block.prefix)
        merge = self._part(MergePart(plain, self.kernels, sized=sized), before)
        mlp = Bucketed({batch: unjoined(way) for batch, way in mlp.ways.items()})
        return FusedTokenBlock(before, sized, first, attend, second, mlp, merge)

    def _merging_cell(self, cell: MergingCell, chains: BlockChains, tokens: int) -> nn.Module:
        merging, prefix = cell.plan.merging, int(cell.class_token)
        count = 0 if merging is None else merging.count(tokens - prefix)
        if not count:
            return self._block(chains, tokens)
        norm, qkv, attention, proj, _ = chains.attention.operators
        assert isinstance(attention, SelfAttention)
        few = Chain([norm, qkv, replace(attention, sized=True), proj])
        plain = BranchResidual(self._placed(cell.PCM), cell.class_token)
        residual = self._part(BranchPart(plain, self.kernels), tokens)
        attend = self._chain("attention", few, tokens - count)
        mlp = self._chain("mlp", Chain(chains.mlp.operators[:-1]), tokens - count)
        return FusedMergingCell(tokens, count, prefix, residual, attend, mlp)

    def _join(self, chains: BlockChains, attention: Bucketed, mlp: Bucketed, tokens: int) -> tuple[Bucketed, Bucketed]:
        """Return the halves, with what is between them in one launch at the batch sizes where that is faster."""
        first, second = dict(attention.ways), {batch: unjoined(way) for batch, way in mlp.ways.items()}
        norm = chains.mlp.operators[0]
        assert isinstance(norm, LayerNorm)
        part = AddNormPart(self._placed(AddNorm(norm)), self.kernels)
        runs: list[BucketPlan] = []
        for batch in () if self.kernels.refusal else self.batch_sizes:
            before, after = attention.ways[batch].call, mlp.ways[batch].call
            assert isinstance(before, CompiledChain)
            assert isinstance(after, CompiledChain)
            apart = split_halves(chains, before, after, self.tuning.impls)
            if apart is None:
                continue
            runs.append(self._choose(part, before.problem))
            if runs[-1][0].name != "torch":
                first[batch], second[batch] = join_halves(*apart, runs[-1][0])
        if runs:
            _, plans, refused = zip(*runs, strict=True)
            self._count(PartReport(part.kind, part.describe(), tokens, 1, plans, _by_all(refused)))
        return Bucketed(first), Bucketed(second)

    def _reduction(self, cell: PerformerReduction, tokens: int) -> FusedReduction:
        performer = self._part(PerformerPart(self._placed(cell.attn), self.kernels), tokens)
        return FusedReduction(FusedPyramid(cell.PRM), cell.PCM, performer)

    def _chain(self, kind: str, chain: Chain, tokens: int) -> Bucketed:
        def run_at(problem: Problem) -> BucketPlan:
            chosen = self.eight_bits.choose(kind, chain, problem, self.tuning)
            plan = chosen.way.plan
            if chosen.source == "measured":  # the first starts take long: say what they do
                logger.info("measured %s at batch %d: %s", kind, problem.batch, plan)
            way = Alternative(str(plan), chosen.way, chosen.way.tensors)
            report = self._plan(problem, plan.bits, plan.impls, chosen)
            return way, report, refusals(chain, problem, self.tuning.impls)

        return self._bucketed(kind, chain.describe(), tokens, run_at)

    def _part(self, part: Part, tokens: int) -> Bucketed:
        return self._bucketed(part.kind, part.describe(), tokens, lambda problem: self._choose(part, problem))

    def _choose(self, part: Part, problem: Problem) -> BucketPlan:
        chosen = choose(part, problem, self.tuning)
        return chosen.way, self._plan(problem, "", (chosen.way.name,), chosen), part.refused(problem)

    def _bucketed(self, kind: str, shapes: str, tokens: int, run_at: Callable[[Problem], BucketPlan]) -> Bucketed:
        problems = [Problem(self.device, self.dtype, batch, tokens) for batch in self.batch_sizes]
        ways, plans, refused = zip(*map(run_at, problems), strict=True)
        self._count(PartReport(kind, shapes, tokens, 1, plans, _by_all(refused)))
        return Bucketed(dict(zip(self.batch_sizes, ways, strict=True)))

    def _plan(self, problem: Problem, cuts: str, impls: tuple[str, ...], chosen: Chosen[Any]) -> PlanReport:
        for reason in chosen.discarded:
            self._fall_back("engine", reason)
        microseconds = None if chosen.seconds is None else round(chosen.seconds * 1e6, 2)
        return PlanReport(problem.batch, cuts, impls, microseconds, chosen.source)

    def _count(self, part: PartReport) -> None:
        """Equal parts are one row of the report, that of the first: it was measured, the others found its plan."""
        key = (part.kind, part.shapes, part.tokens)
        known = self.parts.setdefault(key, replace(part, count=0))
        self.parts[key] = replace(known, count=known.count + 1)

    def _fall_back(self, kind: str, reason: str) -> None:
        fallback = Fallback(kind, reason)
        if fallback not in self.fallbacks:
            self.fallbacks.append(fallback)

    def _placed(self, module: Module) -> Module:
        """The module in its usual serving form, on the device."""
        return cast(Module, prepare_for_inference(module, dtype=self.dtype).to(self.device))


def _by_all(refused: Sequence[dict[str, str]]) -> dict[str, str]:
    """The impls that refuse at every bucket, with the reason at the first."""
    first, *others = refused
    return {name: reason for name, reason in first.items() if all(name in other for other in others)}
