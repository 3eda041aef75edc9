"""Renames tensors to the keys of their architecture's original code, where another code has renamed them."""

from collections.abc import Mapping

from torch import Tensor


def original_keys(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The state under original keys, and what to say of it.

    HazyResearch/fly's T2T-ViT calls `tokens_to_token` `patch_embed`, and keeps `pos_embed` as `pos_embed.pe`.
    """
    if not any(key.startswith("patch_embed.attention1.") for key in state):
        return dict(state), []
    renamed = {_t2t_key(key): tensor for key, tensor in state.items()}
    return renamed, ["renamed the keys of HazyResearch/fly's T2T-ViT to the original ones"]


def _t2t_key(key: str) -> str:
    if key == "pos_embed.pe":
        return "pos_embed"
    part = "patch_embed."
    return "tokens_to_token." + key.removeprefix(part) if key.startswith(part) else key
