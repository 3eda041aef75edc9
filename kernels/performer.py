"""Packs the performer attention of a reduction cell for the CUDA kernels, and computes it from the packed tensors.

The operator (csrc/performer/performer.cuh):

    performer_attention(Tensor kqv, Tensor weights, Tensor biases, Tensor? parallel, float eps, float norm_eps,
                        int tile) -> Tensor

kqv (B, N, 3 * dim) is in the order keys, queries, values and of the dtype of `weights`; parallel and the result are
(B, N, dim). `weights` (one dimension) and `biases` are a PackedPerformer's; biases has three rows if the cell's MLP is
part of it, otherwise one. tile: see `performer_tile`. The launch allocates the workspace.

Matrices are packed in `fragments`. The features' matrix, times log2(e), becomes an exact sum of terms of the model's
dtype. A lane reads and writes 8 neighbouring numbers of a token, but the tensor cores' layout has them as four pairs 8
apart; so rows and columns that belong to tokens in memory are permuted (`_lane_order`).
"""

from dataclasses import dataclass
from math import log, log2

import torch
from torch import Tensor
from torch.nn import functional as F

from .native.fragments import fragments, matrix_of

PERFORMER_DIMS = (32, 64, 96, 192)
_LOG2_E = 1 / log(2)
_TERMS = {torch.bfloat16: 3, torch.float16: 2}
_LARGE_SHARED_BYTES = 163 * 1024  # sm_80; sm_90 and sm_100 have more, sm_86, 89 and 120 have 99 KiB


@dataclass(frozen=True)
class PerformerMlp:
    """The end of the cell, x + fc2(gelu(fc1(norm(x)))): LayerNorm and two Linear(dim, dim)."""

    norm_weight: Tensor
    norm_bias: Tensor
    fc1_weight: Tensor
    fc1_bias: Tensor
    fc2_weight: Tensor
    fc2_bias: Tensor
    norm_eps: float


@dataclass(frozen=True)
class PackedPerformer:
    """The arguments of the operator other than activations, derived from the checkpoint's tensors.

    Args:
        weights: (count,) of the model's dtype: features' matrix, projection, and with an MLP fc1 and fc2.
        biases: (3, dim) or, without MLP, (1, dim), float32.
        dim: width of the tokens.
        eps: added to the attention's denominator.
        norm_eps: eps of the MLP's LayerNorm.
    """

    weights: Tensor
    biases: Tensor
    dim: int
    eps: float
    norm_eps: float

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.dtype

    @property
    def mlp(self) -> bool:
        return self.biases.shape[0] == 3


def performer_refusal(dim: int, dtype: torch.dtype) -> str | None:
    """Return why the kernels do not take such a cell; None if they do."""
    if dtype not in _TERMS:
        return f"performer kernels are for bfloat16 and float16, not {dtype}"
    if dim not in PERFORMER_DIMS:
        return f"performer kernels are for widths {', '.join(map(str, PERFORMER_DIMS))}, not {dim}"
    return None


def performer_tile(shared_limit: int) -> int:
    """Return the tile variant for a device whose blocks may have `shared_limit` bytes of shared memory."""
    return 0 if shared_limit >= _LARGE_SHARED_BYTES else 1


def pack_performer(
    w: Tensor, proj_weight: Tensor, proj_bias: Tensor, mlp: PerformerMlp | None, *, eps: float, dtype: torch.dtype
) -> PackedPerformer:
    """Pack a cell's parameters.

    Args:
        w: random features (dim / 2, dim), float32.
        proj_weight, proj_bias: (dim, dim) and (dim,).
        mlp: the end of the cell, or None to leave it out.
        eps: added to the attention's denominator.
        dtype: dtype of the activations.

    Raises:
        ValueError: the kernels do not take this width or dtype, shapes do not fit, or w is too large for the dtype.
    """
    dim = w.shape[1]
    if refusal := performer_refusal(dim, dtype):
        raise ValueError(refusal)
    if w.shape[0] * 2 != dim or proj_weight.shape != (dim, dim):
        raise ValueError(f"performer of width {dim}: w is {tuple(w.shape)}, proj {tuple(proj_weight.shape)}")
    order = _lane_order(dim).to(w.device)
    parts = [_feature_terms(w[:, order], dtype), fragments(proj_weight[order].to(dtype))]
    biases = [proj_bias.float()]
    if mlp is not None:
        # The norm's affine map, applied by fc1.
        fc1 = mlp.fc1_weight.double() * mlp.norm_weight.double()
        rows, columns = fragments(fc1[:, order].to(dtype)), fragments(mlp.fc2_weight[order].to(dtype)).transpose(0, 1)
        parts.append(torch.stack([rows, columns], dim=1))  # by 16 hidden columns
        shift = mlp.fc1_weight.double() @ mlp.norm_bias.double()
        biases += [(mlp.fc1_bias.double() + shift).float(), mlp.fc2_bias.float()]
    weights = torch.cat([part.flatten() for part in parts]).contiguous()
    return PackedPerformer(weights, torch.stack(biases).contiguous(), dim, eps, 0.0 if mlp is None else mlp.norm_eps)


def performer_reference(
    kqv: Tensor, weights: Tensor, biases: Tensor, parallel: Tensor | None, eps: float, norm_eps: float
) -> Tensor:
    """Compute the operator in plain torch on any device, in float32 between input and output."""
    dim = kqv.shape[-1] // 3
    w, *matrices = _unpack(weights, dim, mlp=biases.shape[0] == 3)
    k, q, v = kqv.float().chunk(3, dim=-1)
    phi_k, phi_q = _features(k, w), _features(q, w)
    denominator = phi_q @ phi_k.sum(dim=1).unsqueeze(-1)
    y = phi_q @ (phi_k.transpose(1, 2) @ v) / (denominator + eps)
    x = v + F.linear(y, matrices[0], biases[0])
    if parallel is not None:
        x = x + parallel.float()
    if len(matrices) > 1:
        hidden = F.gelu(F.linear(F.layer_norm(x, (dim,), eps=norm_eps), matrices[1], biases[1]))
        x = x + F.linear(hidden, matrices[2], biases[2])
    return x.to(kqv.dtype)


def _features(t: Tensor, w: Tensor) -> Tensor:
    """exp(w t - |t|^2 / 2) / sqrt(m) with w already times log2(e): (B, N, dim) -> (B, N, m)."""
    half_square = t.square().sum(dim=-1, keepdim=True) * (_LOG2_E / 2)
    return torch.exp2(F.linear(t, w) - half_square - log2(w.shape[0]) / 2)


def _lane_order(size: int) -> Tensor:
    """Return, in the tensor cores' order, where the numbers are in memory.

    Of 32 numbers, lane t of four has 8t .. 8t+7, in four pairs that belong to 2t, 8 + 2t, 16 + 2t and 24 + 2t.
    """
    return torch.arange(size).view(-1, 4, 4, 2).transpose(1, 2).flatten()


def _feature_terms(w: Tensor, dtype: torch.dtype) -> Tensor:
    """Split w log2(e) into a sum of terms of `dtype`: (m, dim) -> (m / 16, terms, dim / 16, 32, 8)."""
    remainder = w.double() * _LOG2_E
    terms = []
    for _ in range(_TERMS[dtype]):
        term = remainder.to(dtype)
        if not term.isfinite().all():
            raise ValueError(f"performer features w up to {w.abs().max():.3g} do not fit {dtype}")
        remainder = remainder - term.double()
        terms.append(fragments(term))
    return torch.stack(terms, dim=1)


def _unpack(weights: Tensor, dim: int, *, mlp: bool) -> list[Tensor]:
    """Return the packed matrices in float32: w log2(e), the projection, and fc1 (after the norm's map) and fc2."""
    order = torch.argsort(_lane_order(dim)).to(weights.device)
    steps, terms = dim // 16, _TERMS[weights.dtype]
    sizes = [terms * dim * (dim // 2), dim * dim] + [2 * dim * dim] * mlp
    features, projection, *mlp_weights = weights.float().split(sizes)
    by_term = features.view(steps // 2, terms, steps, 32, 8).unbind(dim=1)
    w = sum(matrix_of(term) for term in reversed(by_term))
    assert isinstance(w, Tensor)
    matrices = [w[:, order], matrix_of(projection.view(steps, steps, 32, 8))[order]]
    for both in mlp_weights:
        rows, columns = both.view(steps, 2, steps, 32, 8).unbind(dim=1)
        matrices += [matrix_of(rows)[:, order], matrix_of(columns.transpose(0, 1))[order]]
    return matrices
