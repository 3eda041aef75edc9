"""A cell of performer attention, its function in float64, and the emulated kernel with tensors for arguments."""

import ctypes
from dataclasses import dataclass, replace
from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from milkweed.kernels.performer import PackedPerformer, PerformerMlp, pack_performer

from .emulation import guarded, guards_untouched, launch

DTYPES = {torch.bfloat16: 4e-3, torch.float16: 1e-3}
DIMS = (32, 64, 96, 192)


@dataclass(frozen=True)
class Case:
    """One cell with its input: matrices already of the dtype's numbers, so that float64 knows the exact function."""

    w: Tensor
    proj: tuple[Tensor, Tensor]
    mlp: PerformerMlp | None
    kqv: Tensor
    parallel: Tensor | None
    eps: float = 1e-8

    @property
    def packed(self) -> PackedPerformer:
        return pack_performer(self.w, *self.proj, self.mlp, eps=self.eps, dtype=self.kqv.dtype)

    def attention(self) -> Tensor:
        """y in float64."""
        k, q, v = self.kqv.double().chunk(3, dim=-1)
        phi_k, phi_q = self.features(k), self.features(q)
        return phi_q @ (phi_k.mT @ v) / (phi_q @ phi_k.sum(dim=1).unsqueeze(-1) + self.eps)

    def features(self, t: Tensor) -> Tensor:
        half_square = t.square().sum(dim=-1, keepdim=True) / 2
        return torch.exp(t @ self.w.double().T - half_square) / sqrt(self.w.shape[0])

    def truth(self) -> Tensor:
        x = self.kqv.double().chunk(3, dim=-1)[2] + F.linear(self.attention(), *(p.double() for p in self.proj))
        if self.parallel is not None:
            x = x + self.parallel.double()
        if self.mlp is not None:
            m = {name: value.double() for name, value in vars(self.mlp).items() if isinstance(value, Tensor)}
            z = F.layer_norm(x, x.shape[-1:], m["norm_weight"], m["norm_bias"], self.mlp.norm_eps)
            x = x + F.linear(F.gelu(F.linear(z, m["fc1_weight"], m["fc1_bias"])), m["fc2_weight"], m["fc2_bias"])
        return x


def make_case(
    dim: int, images: int, tokens: int, dtype: torch.dtype, *, mlp: bool = True, beside: bool = True, scale: float = 0.5
) -> Case:
    """Random weights as the model initialises them; keys and queries of `scale`: features of e^-24 .. e^3 at 0.5."""
    torch.manual_seed(dim + tokens)
    w = torch.nn.init.orthogonal_(torch.empty(dim // 2, dim), gain=sqrt(dim // 2))

    def square() -> Tensor:
        return (torch.randn(dim, dim) / sqrt(dim)).to(dtype).float()

    def row() -> Tensor:
        return torch.randn(dim) * 0.1

    end = PerformerMlp(torch.ones(dim), row(), square(), row(), square(), row(), 1e-5)
    kqv = torch.randn(images, tokens, 3 * dim) * torch.tensor([scale, scale, 1.0]).repeat_interleave(dim)
    parallel = torch.randn(images, tokens, dim).to(dtype)
    return Case(w, (square(), row()), end if mlp else None, kqv.to(dtype), parallel if beside else None)


def bare(case: Case) -> Case:
    """The same with the skips cancelled and no projection, so that the result is y."""
    dim = case.w.shape[1]
    return replace(case, proj=(torch.eye(dim), torch.zeros(dim)), mlp=None, parallel=-case.kqv.chunk(3, dim=-1)[2])


class Performer:
    """mw_performer with tensors for arguments; checks that nothing is written beside its outputs."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.mw_performer_workspace.restype = ctypes.c_int64
        library.mw_performer_weights.restype = ctypes.c_int64

    def launch(
        self,
        case: Case,
        *,
        mode: int = 0,
        seed: int = 1,
        tile: int = 0,
        splits: int = 2,
        multiprocessors: int = 3,
        shared_limit: int = 163 * 1024,
    ) -> tuple[Tensor, Tensor]:
        """The result and the workspace (images, splits, dim + 1, dim / 2)."""
        images, tokens, width = case.kqv.shape
        dim, packed = width // 3, case.packed
        dtype = list(DTYPES).index(case.kqv.dtype)
        assert packed.weights.numel() == self.library.mw_performer_weights(dtype, dim, int(packed.mlp))
        partial = guarded((images, splits, dim + 1, dim // 2), torch.float32)
        assert partial.numel() == self.library.mw_performer_workspace(images, dim, splits)
        out = guarded((images, tokens, dim), case.kqv.dtype)
        parallel = None if case.parallel is None else case.parallel.contiguous()
        tensors = (case.kqv.contiguous(), packed.weights, packed.biases, parallel, partial, out)
        error = launch(
            *(self.library.mw_performer, mode, seed, dtype, tile, *tensors, images, tokens, dim, splits),
            *(int(packed.mlp), packed.eps, packed.norm_eps, multiprocessors, shared_limit),
        )
        if error is not None:
            raise RuntimeError(error)
        assert guards_untouched(partial)
        assert guards_untouched(out)
        return out, partial

    def __call__(self, case: Case, **how: int) -> Tensor:
        return self.launch(case, **how)[0]
