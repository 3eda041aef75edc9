"""Rules that make timm's keys of those of the transformers library, by family."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

Rules = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]
"""Patterns of parts of a key and what takes their place, applied in order. No answer depends on a tensor whose key
becomes empty."""

_PREFIX = (r"^\w+\.(?=embed\w+\.|encoder\.|layernorm\.|pooler\.|conv_|layer\.)", "")
VIT: Rules = (
    _PREFIX,
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.(distillation_token|register_tokens)$", "reg_token"),
    (r"^embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"^embeddings\.", ""),
    (r"^encoder\.layer\.", "blocks."),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"attention\.output\.dense", "attn.proj"),
    (r"attention\.(attention|self)", "attn"),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"output\.dense", "mlp.fc2"),
    (r"^pooler\.layernorm", "fc_norm"),
    (r"^layernorm", "norm"),
    (r"^(cls_)?classifier", "head"),
    (r"^distillation_classifier", "head_dist"),
)
DISTILLED: Rules = (*VIT, (r"^reg_token", "dist_token"))
DINOV2: Rules = (
    *VIT,
    (r"layer_scale([12])\.lambda1", r"ls\1.gamma"),
    (r"mlp\.weights_in", "mlp.fc1"),
    (r"mlp\.weights_out", "mlp.fc2"),
)
_SEPARATE_BIASES: Rules = ((r"\.query\.bias$", ".q_bias"), (r"\.value\.bias$", ".v_bias"))
BEIT: Rules = (
    *VIT,
    *_SEPARATE_BIASES,
    (r"\.lambda_([12])$", r".gamma_\1"),
    (r"^encoder\.relative_position_bias\.", "rel_pos_bias."),
    (r"attn\.relative_position_bias\.", "attn."),
)
TOWER: Rules = (
    (r"^vision_model\.head\..*|.*\bposition_ids$", ""),
    (r"^vision_model\.", ""),
    (r"^embeddings\.class_embedding$", "cls_token"),
    (r"^embeddings\.position_embedding\.weight$", "pos_embed"),
    (r"^embeddings\.patch_embedding", "patch_embed.proj"),
    (r"^pre_layrnorm", "norm_pre"),
    (r"^post_layernorm", "norm"),
    (r"^encoder\.layers\.", "blocks."),
    (r"layer_norm([12])", r"norm\1"),
    (r"self_attn\.q_proj", "attn.query"),
    (r"self_attn\.k_proj", "attn.key"),
    (r"self_attn\.v_proj", "attn.value"),
    (r"self_attn\.out_proj", "attn.proj"),
    (r"^classifier", "head"),
)
_TEXT = (r"^(text_model|text_projection|logit_scale|logit_bias)\b.*", "")
CLIP_TOWER: Rules = (_TEXT, (r"^visual_projection\.", "head."), *TOWER)
SIGLIP_TOWER: Rules = (
    _TEXT,
    (r"^(?=(embeddings|encoder|post_layernorm|head)\.)", "vision_model."),
    (r"^vision_model\.head\.probe$", "attn_pool.latent"),
    (r"^vision_model\.head\.attention\.in_proj_", "attn_pool.q_kv."),
    (r"^vision_model\.head\.attention\.out_proj", "attn_pool.proj"),
    (r"^vision_model\.head\.layernorm", "attn_pool.norm"),
    (r"^vision_model\.head\.mlp", "attn_pool.mlp"),
    *TOWER,
)
EMBEDDER: Rules = (
    (r"^pooler\.dense\..*", ""),  # on the class token, for the next sentence of BERT; nothing trains it
    (r"^(?=(embed\w*|encoder|layernorm|pooler|conv_\w+|layer)\.)", "model."),
)
"""What makes a classifier's keys of those of a model that is none."""

CLIP: Rules = ((r"^vision_model\.post_layernorm\..*", ""), *TOWER)
SWIN: Rules = (
    _PREFIX,
    (r"^embeddings\.norm", "patch_embed.norm"),
    # transformers merges patches at the end of a stage, timm at the beginning of the next.
    (r"^encoder\.layers\.(\d+)\.downsample", lambda match: f"layers.{int(match[1]) + 1}.downsample"),
    (r"^encoder\.", ""),
    (r"^classifier", "head.fc"),
    *VIT,
)
SWINV2: Rules = (*SWIN, (r"continuous_position_bias_mlp", "cpb_mlp"), *_SEPARATE_BIASES)
CONVNEXT: Rules = (
    _PREFIX,
    (r"^embeddings\.patch_embeddings", "stem.0"),
    (r"^embeddings\.layernorm", "stem.1"),
    (r"^encoder\.(stages\.\d+)\.downsampling_layer", r"\1.downsample"),
    (r"^encoder\.(stages\.\d+)\.layers", r"\1.blocks"),
    (r"dwconv", "conv_dw"),
    (r"pwconv([12])", r"mlp.fc\1"),
    (r"\.grn", ".mlp.grn"),
    (r"layer_scale_parameter", "gamma"),
    (r"^layernorm", "head.norm"),
    (r"layernorm", "norm"),
    (r"^classifier", "head.fc"),
)
RESNET: Rules = (
    _PREFIX,
    (r"^embedder\.embedder\.convolution", "conv1"),
    (r"^embedder\.embedder\.normalization", "bn1"),
    (r"^encoder\.stages\.(\d+)\.layers", lambda match: f"layer{int(match[1]) + 1}"),
    (r"\.layer\.(\d+)\.convolution", lambda match: f".conv{int(match[1]) + 1}"),
    (r"\.layer\.(\d+)\.normalization", lambda match: f".bn{int(match[1]) + 1}"),
    (r"shortcut\.convolution", "downsample.0"),
    (r"shortcut\.normalization", "downsample.1"),
    (r"^classifier\.1", "fc"),
)
_STAGES = tuple(accumulate((2, 3, 4, 3, 3, 1), initial=0))


def _staged(match: re.Match[str]) -> str:
    """timm's name of a block that transformers counts through all stages; the first stage is transformers' stem."""
    block = int(match[1])
    stage = max(index for index, before in enumerate(_STAGES) if before <= block)
    return f"blocks.{stage + 1}.{block - _STAGES[stage]}."


MOBILENETV2: Rules = (
    _PREFIX,
    (r"^conv_1x1\.convolution", "conv_head"),
    (r"^conv_1x1\.normalization", "bn2"),
    (r"^conv_stem\.first_conv\.convolution", "conv_stem"),
    (r"^conv_stem\.first_conv\.normalization", "bn1"),
    (r"^conv_stem\.conv_3x3\.convolution", "blocks.0.0.conv_dw"),
    (r"^conv_stem\.conv_3x3\.normalization", "blocks.0.0.bn1"),
    (r"^conv_stem\.reduce_1x1\.convolution", "blocks.0.0.conv_pw"),
    (r"^conv_stem\.reduce_1x1\.normalization", "blocks.0.0.bn2"),
    (r"^layer\.(\d{1,3})\.", _staged),
    (r"expand_1x1\.convolution", "conv_pw"),
    (r"expand_1x1\.normalization", "bn1"),
    (r"conv_3x3\.convolution", "conv_dw"),
    (r"conv_3x3\.normalization", "bn2"),
    (r"reduce_1x1\.convolution", "conv_pwl"),
    (r"reduce_1x1\.normalization", "bn3"),
)
_PART = re.compile(r"(.*\.)(query|key|value)\.(weight|bias)")


def timm_state(rules: Rules, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under timm's keys and in its shapes. A key that no rule knows stays: it is named where it misfits."""
    renamed = {}
    for key, tensor in state.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        if key:
            renamed[key] = tensor
    result: dict[str, Tensor] = {}
    for key, tensor in renamed.items():
        match = _PART.fullmatch(key)
        parts = [renamed.get(f"{match[1]}{name}.{match[3]}") for name in ("query", "key", "value")] if match else []
        whole = [part for part in parts if part is not None and part.dim() and part.shape == tensor.shape]
        if match is None or len(whole) < 3:
            result[key] = _shaped(key, tensor)
        elif match[2] == "query":
            result[f"{match[1]}qkv.{match[3]}"] = torch.cat(whole)
    joined = [key for key, tensor in result.items() if key.startswith("attn_pool.q_kv.") and tensor.dim()]
    for key in joined:  # of torch's MultiheadAttention
        tensor, part = result.pop(key), key.rpartition(".")[2]
        result[f"attn_pool.q.{part}"], result[f"attn_pool.kv.{part}"] = tensor.split(
            [len(tensor) // 3, -(-2 * len(tensor) // 3)]
        )
    if "head.weight" in result and "head.bias" not in result and result["head.weight"].dim():  # CLIP's projection
        result["head.bias"] = torch.zeros(len(result["head.weight"]), dtype=result["head.weight"].dtype)
    return result


def _shaped(key: str, tensor: Tensor) -> Tensor:
    """Tokens and positions with a batch axis, as timm has them; GRN's parameters without their axes of length 1."""
    if key in ("cls_token", "pos_embed") and tensor.dim() in (1, 2):
        return tensor.reshape(1, -1, tensor.shape[-1])
    return tensor.flatten() if ".mlp.grn." in key else tensor
