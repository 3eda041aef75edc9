"""A model's layers in 8 bits, put into the chains of its blocks."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import e, log2

import torch

from ....kernels.chain_ir import Dense, Linear, Problem, SelfAttention
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

    def quantized(self, chains: BlockChains, block: str) -> BlockChains:
        """The chains of a block with its layers in 8 bits."""
        attention = self._replaced(chains.attention, f"{block}.attn.qkv", f"{block}.attn.proj")
        mlp = self._replaced(chains.mlp, f"{block}.mlp.fc1", f"{block}.mlp.fc2")
        return BlockChains(attention, mlp, chains.cell)

    def choose(self, kind: str, chain: Chain, problem: Problem, tuning: Tuning) -> Chosen[CompiledChain]:
        """Choose the chain's plan as `choose_chain` does, in 16 bits where that was measured to be faster."""
        chosen = choose_chain(chain, problem, tuning)
        wide = Chain([self._wide[op] if isinstance(op, QuantizedDense) else op for op in chain.operators])
        if wide.operators == chain.operators or chosen.seconds is None:
            return chosen
        other = choose_chain(wide, problem, tuning)
        if other.seconds is None or other.seconds >= chosen.seconds:
            return chosen
        note = f"{kind} of {problem.tokens} tokens at batch {problem.batch}: it is faster in 16 bits"
        if note not in self.notes:
            self.notes.append(note)
        return other

    def _replaced(self, chain: Chain, *names: str) -> Chain:
        left, operators = iter(names), list(chain.operators)
        for i, operator in enumerate(chain.operators):
            layer = self.layers.get(next(left)) if isinstance(operator, Linear) else None
            if layer is None or not isinstance(operator, Dense):
                continue
            if isinstance(attention := chain.operators[i + 1], SelfAttention):
                factor = torch.ones(layer.out_features)
                factor[: attention.num_heads * attention.head_dim] = attention.scale * log2(e)
                layer = replace(layer, scale=layer.scale / factor, bias=layer.bias / factor)
            operators[i], self._wide[layer] = layer, operator
        return Chain(operators)
