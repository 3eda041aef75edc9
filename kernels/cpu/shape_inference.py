"""Shape inference: which operators of a program may follow which, what each needs, and what it leaves behind.

It is the one table that the checker of files, the assembler and the reference evaluator read.
"""

from dataclasses import replace

from .program import (
    Attention,
    BiasedAttention,
    Branch,
    Depthwise,
    Embed,
    Factor,
    Grid,
    Head,
    JoinedHead,
    Merge,
    NormedEmbed,
    Performer,
    Pixels,
    Program,
    Pyramid,
    ResponseNorm,
    WindowedAttention,
)
from .row_operators import (
    AddTransposed,
    AddValues,
    Glu,
    InnerNorm,
    Join,
    Keep,
    NewStream,
    Norm,
    PostNorm,
    QkNorm,
    ReadStream,
    Renew,
    RmsNorm,
    Rotary,
    StartTokens,
    Transpose,
    Unmerge,
)
from .shape_checks import MAX_CHANNELS, MAX_SIDE, State, require, whole
from .shape_rules import RULES, factor_rule, norm_rule

MAX_TOKENS = 1 << 16
"""A kernel's products of tokens and channels have to fit 32 bits."""


_ATTENTIONS = (Attention, BiasedAttention, WindowedAttention)

_BESIDE = (Norm, RmsNorm, ReadStream, Factor, Glu, InnerNorm, PostNorm)
"""What may lie between what is kept for an attention and that."""

_READERS: dict[type, tuple[type, ...]] = {
    Norm: (Factor, Transpose),
    ReadStream: (Factor,),
    Factor: (
        *(Factor, *_ATTENTIONS, Performer, ResponseNorm, InnerNorm, PostNorm, Glu, QkNorm, Rotary, NewStream),
        *(AddTransposed, Keep),
    ),
    Transpose: (Factor,),
    Glu: (Factor, InnerNorm),
    InnerNorm: (Factor, NewStream),
    QkNorm: (Rotary, Keep, *_ATTENTIONS),
    Rotary: (Keep, *_ATTENTIONS),
    Join: (Factor, InnerNorm),
    Depthwise: (Factor, InnerNorm),
    ResponseNorm: (Factor,),
    Attention: (Factor, InnerNorm, Branch, Renew),
    Performer: (Factor, Branch),
}
"""What may follow an operator that gives channels, until a factor or an attention has read them."""

_UNREAD = (
    *(Norm, RmsNorm, Renew, ReadStream, AddValues, Grid, Pyramid, Branch, Merge, Unmerge, Join, Depthwise),
    StartTokens,
)
"""What may follow where nothing waits to be read."""

_TRANSPOSED = (Factor, Glu, AddTransposed)
"""What may read rows that are channels."""


def infer_shapes(program: Program) -> list[State]:
    """Return the state before the first operator, and behind each.

    Raises:
        ValueError: operators, shapes or places do not fit each other; one line that names the operator.
    """
    states = [_first(program.embed)]
    for place, operator in enumerate(program.operators):
        kind, before = type(operator), states[-1]
        try:
            followers = _READERS[before.giver] if before.giver else _UNREAD
            if before.kept:
                between = tuple(follower for follower in followers if follower in _BESIDE)
                followers = between if before.giver else (*between, *_ATTENTIONS)
            if before.transposed:
                followers = tuple(follower for follower in followers if follower in _TRANSPOSED)
            require(kind in followers, f"follows what {' or '.join(a.__name__ for a in followers)} may follow")
            states.append(RULES[kind](before, operator))
            require(states[-1].tokens <= MAX_TOKENS, f"{states[-1].tokens} tokens, at most {MAX_TOKENS} may be")
        except ValueError as error:
            raise ValueError(f"operator {place} ({kind.__name__}): {error}") from None
    _check_head(program.head, states[-1])
    return states


def _first(embed: Embed | Pixels) -> State:
    require(whole(embed.size, 1, MAX_SIDE), f"embed: images of {embed.size} px, at most {MAX_SIDE} may be")
    if isinstance(embed, Pixels):
        return State(grid=(embed.size, 3), unread=True)
    (tokens, width), patch = embed.start.shape, embed.weight.shape[-1]
    require(tokens <= MAX_TOKENS, f"embed: {tokens} tokens, at most {MAX_TOKENS} may be")
    fits = embed.weight.shape == (width, 3, patch, patch) and 0 < patch <= embed.size and 0 < width <= MAX_CHANNELS
    require(fits, f"embed: its weight's shape {embed.weight.shape}")
    fits = embed.bias.shape == (width,) and tokens >= (embed.size // patch) ** 2
    require(fits, f"embed: its start's shape {embed.start.shape}")
    if isinstance(embed, NormedEmbed):
        fits = embed.norm.weight.shape == embed.norm.bias.shape == (width,)
        require(fits, f"embed: its norm is not of {width} channels")
    return State(tokens, width)


def _check_head(head: Head, state: State) -> None:
    require(
        state.giver is None and not state.unread and not state.kept, "head: nothing reads what the last operators give"
    )
    require(head.mean_from is None or whole(head.mean_from, 0, state.tokens - 1), f"head: {head.mean_from}")
    if isinstance(head, JoinedHead):
        left = state.tokens - (state.tokens if head.mean_from is None else head.mean_from)
        fits = left > 0 and (head.count is None or whole(head.count, 1, left))
        require(fits, f"head: it joins the mean of {head.count} of {left} tokens")
        state = replace(state, width=2 * state.width)
    state = replace(state, channels=state.width) if head.norm is None else norm_rule(state, head.norm)
    require(state.channels > 0, "head: there is nothing that it reads")
    require(not head.classifier.adds, "head: it adds to the stream")
    factor_rule(state, head.classifier)
