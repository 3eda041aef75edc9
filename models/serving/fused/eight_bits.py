"""A model's layers in 8 bits, put into the chains of its blocks."""

from collections.abc import Collection, Mapping
from math import e, log2

import torch

from ....kernels.chain_ir import ChainOp, Dense, Linear, Problem, SelfAttention
from ....kernels.quantized import QuantizedDense
from ....kernels.tuning.chain import Chain, CompiledChain
from .chains import BlockChains
from .tuning import Chosen, Tuning, choose_chain


class EightBits:
    """A model's layers in 8 bits, by name, and what stays in 16 bits, with the reasons.

    Args:
        layers: as the CPU's int8 program has them: queries are times log2(e) and the attention's scale.
        notes: lines for people.
    """

    def __init__(self, layers: Mapping[str, QuantizedDense], notes: Collection[str]) -> None:
        self.layers, self.notes = layers, list(notes)
        self._wide = dict[QuantizedDense, Dense]()

    @classmethod
    def none(cls, reason: str) -> "EightBits":
        """No layers, and why."""
        return cls({}, [f"not in 8 bits: all layers: {reason}"])

    def quantized(self, chains: BlockChains, block: str) -> BlockChains:
        """The chains of a block with its layers in 8 bits."""
        attention = next(op for op in chains.attention.operators if isinstance(op, SelfAttention))
        columns = attention.num_heads * attention.head_dim
        qkv, proj = (self.layers.get(f"{block}.attn.{name}") for name in ("qkv", "proj"))
        if qkv is not None:
            qkv = _without_factor(qkv, columns, attention.scale * log2(e))
        fc1, fc2 = (self.layers.get(f"{block}.mlp.{name}") for name in ("fc1", "fc2"))
        return BlockChains(
            self._replaced(chains.attention, (qkv, proj)), self._replaced(chains.mlp, (fc1, fc2)), chains.cell
        )

    def wide(self, chain: Chain) -> Chain | None:
        """The chain with its layers in 16 bits; None where none is in 8."""
        operators: list[ChainOp] = [
            self._wide[operator] if isinstance(operator, QuantizedDense) else operator for operator in chain.operators
        ]
        return None if tuple(operators) == chain.operators else Chain(operators)

    def choose(self, kind: str, chain: Chain, problem: Problem, tuning: Tuning) -> Chosen[CompiledChain]:
        """Choose the chain's plan as `choose_chain` does, in 16 bits where that was measured to be faster."""
        chosen, wide = choose_chain(chain, problem, tuning), self.wide(chain)
        if wide is None or chosen.seconds is None:
            return chosen
        other = choose_chain(wide, problem, tuning)
        if other.seconds is None or other.seconds >= chosen.seconds:
            return chosen
        note = f"{kind} of {problem.tokens} tokens at batch {problem.batch}: it is faster in 16 bits"
        if note not in self.notes:
            self.notes.append(note)
        return other

    def _replaced(self, chain: Chain, layers: Collection[QuantizedDense | None]) -> Chain:
        left, operators = iter(layers), list[ChainOp]()
        for operator in chain.operators:
            layer = next(left) if isinstance(operator, Linear) else None
            if layer is not None and isinstance(operator, Dense):
                self._wide[layer] = operator
            operators.append(layer if layer is not None and isinstance(operator, Dense) else operator)
        return Chain(operators)


def _without_factor(qkv: QuantizedDense, columns: int, factor: float) -> QuantizedDense:
    """The layer with the first outputs, the queries, divided by a factor; the integers stay."""
    by = torch.ones(qkv.out_features)
    by[:columns] = factor
    return QuantizedDense(qkv.weight, qkv.scale / by, qkv.bias / by, qkv.step, qkv.zero)
