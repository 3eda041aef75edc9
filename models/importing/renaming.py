"""Finds a model's tensors under other names: behind a prefix, or under the keys of the architecture's original code."""

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate

from torch import Tensor, nn

from ..architectures.timm_models import timm_key_filter
from ..errors import CheckpointError, quoted
from .families import original_keys

UNUSED = ("num_batches_tracked", "n_averaged", "relative_position_index", "_coords_table", "attn_mask", "mask_token")
"""Ends of keys that no answer depends on: counters, tables that are computed again, the token of masked training."""

StateDict = dict[str, Tensor]


def best_prefix(source: str, state: Mapping[str, Tensor], score: Callable[[StateDict], int]) -> str:
    """The prefix behind which most of the model lies, by a score; "" where none is better. Two may not be equal."""
    counts = Counter(prefix for key in state for prefix in accumulate(f"{part}." for part in key.split(".")[:-1]))
    likely = ["", *(prefix for prefix, count in counts.items() if 4 * count >= len(state))]
    scores = {prefix: score(behind(state, prefix)) for prefix in likely}
    best = [prefix for prefix, value in scores.items() if value == max(scores.values())]
    if "" in best:
        return ""
    if len(best) > 1:
        raise CheckpointError(f"{source}: the prefixes {' and '.join(best)} of keys fit alike: keep one model's keys")
    return best[0]


def behind(state: Mapping[str, Tensor], prefix: str) -> StateDict:
    """The tensors whose keys begin with the prefix, without it."""
    return {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}


def model_state(
    source: str, arch: str, model: nn.Module, state: Mapping[str, Tensor]
) -> tuple[StateDict, list[str], str]:
    """The tensors under the keys of an architecture's model, notes for a person on what was renamed, and the prefix."""
    expected = model.state_dict()

    def score(part: StateDict) -> int:
        common = len(_renamed(arch, model, part)[0].keys() & expected.keys())
        return common if 2 * common >= len(expected) else 0

    prefix = best_prefix(source, state, score)
    part = behind(state, prefix)
    beside = {key: tensor for key, tensor in state.items() if not key.startswith(prefix)}
    part |= {key: beside.pop(key) for key in expected if key in beside and key not in part}  # a head of the user's own
    result, notes = _renamed(arch, model, part)
    if prefix:
        notes = [f"took the prefix {prefix} off the keys", *notes]
    if beside:
        notes.append(f"left out {len(beside)} tensors beside the model, such as {quoted(next(iter(beside)))}")
    return result, notes, prefix


def _renamed(arch: str, model: nn.Module, state: StateDict) -> tuple[StateDict, list[str]]:
    """The state under the keys of the model, as far as fly's or timm's conversion of an original code makes them so."""
    raw, notes = original_keys(state)
    convert, expected = timm_key_filter(arch), model.state_dict()
    if convert is None or not _strays(raw, expected):
        return raw, notes
    try:
        converted = convert(dict(raw), model)
    except Exception:  # it is made for the original's checkpoints, and fails in any way on others
        return raw, notes
    # timm also resizes what is of another size: weights are not changed without being asked.
    storages = {tensor.untyped_storage().data_ptr() for tensor in raw.values()}
    resized = any(
        key in raw and tensor.numel() != raw[key].numel() and tensor.untyped_storage().data_ptr() not in storages
        for key, tensor in converted.items()
    )
    better = not resized and _strays(converted, expected) < _strays(raw, expected)
    return (
        (converted, [*notes, f"renamed keys of the original code as timm does for {arch}"]) if better else (raw, notes)
    )


def _strays(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> int:
    """How many keys only one of them has, without those that no answer depends on."""
    return sum(not key.endswith(UNUSED) for key in state.keys() ^ expected.keys())
