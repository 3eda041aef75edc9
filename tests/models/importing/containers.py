"""Writes checkpoints in the layouts of other programs, with any payload inside."""

import argparse
import json
import os
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

State = dict[str, Tensor]
Container = Callable[[Path, State, Any], Path]
"""Writes a checkpoint of a state into a folder, with one more object where a trainer would store its own; its path."""

CONFIG: dict[str, Any] = {
    "architecture": "deit_tiny_patch16_224",
    "num_classes": 3,
    "num_features": 32,
    "global_pool": "token",
    "model_args": {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4},
    "label_names": ["n01", "n02", "n03"],
    "label_descriptions": {"n01": "cat", "n02": "dog"},
    "pretrained_cfg": {
        "tag": "fb_in1k",
        "custom_load": False,
        "input_size": [3, 32, 32],
        "fixed_input_size": True,
        "interpolation": "bilinear",
        "crop_pct": 0.875,
        "crop_mode": "center",
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "num_classes": 1000,
        "pool_size": None,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        "license": "apache-2.0",
    },
}
"""As timm writes it."""


class Payload:
    """What an attacker puts into a pickle: it would create a folder where it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@contextmanager
def pretended_libraries() -> Iterator[None]:
    """Libraries that are there while a file is written, and gone when it is read."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("omegaconf", "pytorch_lightning")]:
        del sys.modules[name]


def prefixed(prefix: str, state: State) -> State:
    return OrderedDict((prefix + key, tensor) for key, tensor in state.items())


def spoiled(state: State) -> State:
    """Weights that lie in the file too, and must not be taken."""
    return OrderedDict((key, tensor + 1 if tensor.is_floating_point() else tensor) for key, tensor in state.items())


def timm_tar(folder: Path, state: State, extra: Any) -> Path:
    document = {
        "epoch": 299,
        "arch": "deit_tiny_patch16_224",
        "state_dict": prefixed("module.", spoiled(state)),
        "optimizer": {"state": {0: {"exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 1e-3, "params": [0]}]},
        "version": 2,
        "args": argparse.Namespace(model="deit_tiny_patch16_224", lr=1e-3, extra=extra),
        "state_dict_ema": prefixed("module.", state),
        "metric": 72.2,
    }
    torch.save(document, folder / "model_best.pth.tar")
    return folder / "model_best.pth.tar"


def deit_pth(folder: Path, state: State, extra: Any) -> Path:
    torch.save({"model": spoiled(state), "model_ema": state, "epoch": 1, "args": extra}, folder / "best.pth")
    return folder / "best.pth"


def plain_legacy(folder: Path, state: State, extra: Any) -> Path:
    torch.save({**state, "extra": extra}, folder / "x.pth", _use_new_zipfile_serialization=False)
    return folder / "x.pth"


def compiled(folder: Path, state: State, extra: Any) -> Path:
    torch.save({"model_state_dict": prefixed("_orig_mod.", state), "extra": extra}, folder / "x.pt")
    return folder / "x.pt"


def safetensors(folder: Path, state: State, extra: Any) -> Path:
    save_file(state, folder / "x.safetensors")
    return folder / "x.safetensors"


@pretended_libraries()
def lightning(folder: Path, state: State, extra: Any) -> Path:
    """Lightning's file, with hyper-parameters of OmegaConf and a loss that has a weight."""
    document = {
        "epoch": 9,
        "global_step": 1000,
        "pytorch-lightning_version": "1.6.0",
        "state_dict": {**prefixed("model.", state), "loss_fn.weight": torch.ones(3)},
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"current": {"completed": 9}}}},
        "callbacks": {
            "ModelCheckpoint{'monitor': 'val/acc'}": {"best_model_score": torch.tensor(0.7), "dirpath": "/x"},
            named("pytorch_lightning.callbacks.early_stopping", "EarlyStopping"): {"wait_count": 0},
        },
        "optimizer_states": [{"state": {}, "param_groups": []}],
        "lr_schedulers": [{"last_epoch": 9}],
        "hparams_name": "cfg",
        "hyper_parameters": omegaconf({"model": {"_target_": "x"}, "lr": 1e-3, "extra": extra}),
    }
    torch.save(document, folder / "last.ckpt")
    return folder / "last.ckpt"


def lightning_averaged(folder: Path, state: State, extra: Any) -> Path:
    """Lightning's file with the averages of fly's callback: the parameters in order, without names."""
    document = {
        "pytorch-lightning_version": "1.6.0",
        "state_dict": {**prefixed("model.", spoiled(state)), "loss_fn.weight": torch.ones(3)},
        "callbacks": {"EMACallback": {"decay": 0.99, "num_updates": 5, "shadow_params": list(state.values())}},
        "hyper_parameters": {"extra": extra},
    }
    torch.save(document, folder / "averaged.ckpt")
    return folder / "averaged.ckpt"


def deepspeed(folder: Path, state: State, extra: Any) -> Path:
    """What ZeRO stage 1 or 2 writes under Lightning: the whole model's own copy, the optimizer's pieces beside it."""
    (folder / "run.ckpt" / "checkpoint").mkdir(parents=True)
    (folder / "run.ckpt" / "latest").write_text("checkpoint")
    document = {
        "module": prefixed("module.model.", state),
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [OrderedDict((f"module.model.{key}", tensor.shape) for key, tensor in state.items())],
        "ds_config": {"train_micro_batch_size_per_gpu": 1, "extra": extra},
        "ds_version": "0.6.5",
        "dp_world_size": 8,
        "mp_world_size": 1,
        "global_steps": 1000,
    }
    torch.save(document, folder / "run.ckpt" / "checkpoint" / "mp_rank_00_model_states.pt")
    (folder / "run.ckpt" / "checkpoint" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(b"not read")
    return folder / "run.ckpt"


def hugging_face(folder: Path, state: State, extra: Any) -> Path:
    (folder / "hub").mkdir()
    (folder / "hub" / "config.json").write_text(json.dumps(CONFIG))
    save_file(state, folder / "hub" / "model.safetensors")
    return folder / "hub"


def hugging_face_bin(folder: Path, state: State, extra: Any) -> Path:
    (folder / "bin").mkdir()
    (folder / "bin" / "config.json").write_text(json.dumps(CONFIG))
    torch.save({**state, "extra": extra}, folder / "bin" / "pytorch_model.bin")
    return folder / "bin"


def shards(folder: Path, state: State, extra: Any) -> Path:
    return _sharded(folder / "shards", state, "model-0000{}-of-00002.safetensors", save_file)


def shards_bin(folder: Path, state: State, extra: Any) -> Path:
    def save(part: State, path: Path) -> None:
        torch.save({**part, "extra": extra}, path)

    path = _sharded(folder / "pieces", state, "pytorch_model-0000{}-of-00002.bin", save)
    return path / "pytorch_model.bin.index.json"


def _sharded(folder: Path, state: State, name: str, save: Callable[[State, Path], object]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    keys, weight_map = list(state), {}
    for number, part in enumerate((keys[:9], keys[9:]), 1):
        save({key: state[key] for key in part}, folder / name.format(number))
        weight_map |= dict.fromkeys(part, name.format(number))
    index = f"{name.partition('-')[0]}.{name.rpartition('.')[2]}.index.json"
    (folder / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return folder


CONTAINERS: dict[str, Container] = {
    "timm .pth.tar": timm_tar,
    "DeiT .pth": deit_pth,
    "plain legacy .pth": plain_legacy,
    "torch.compile .pt": compiled,
    "safetensors": safetensors,
    "Lightning .ckpt": lightning,
    "Lightning .ckpt, averages without names": lightning_averaged,
    "DeepSpeed folder": deepspeed,
    "Hugging Face folder": hugging_face,
    "Hugging Face folder, .bin": hugging_face_bin,
    "Hugging Face folder, shards": shards,
    "index of .bin shards": shards_bin,
}
PICKLED = [
    name for name in CONTAINERS if name not in ("safetensors", "Hugging Face folder", "Hugging Face folder, shards")
]


def named(module: str, name: str) -> type:
    """A class that pickles under that name."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        package = sys.modules.setdefault(".".join(parts[:count]), types.ModuleType(parts[count - 1]))
        package.__path__ = []
    made = type(name, (), {"__module__": module})
    setattr(sys.modules[module], name, made)
    return made


def omegaconf(content: dict[str, Any]) -> Any:
    """What omegaconf.DictConfig pickles as, without the library."""
    metadata = named("omegaconf.base", "ContainerMetadata")()
    metadata.__dict__.update(ref_type=Any, object_type=dict, optional=True, key=None, resolver_cache=defaultdict(dict))
    config, node = named("omegaconf.dictconfig", "DictConfig")(), named("omegaconf.nodes", "AnyNode")
    nodes = {}
    for key, value in content.items():
        nodes[key] = node()
        nodes[key].__dict__.update(_val=value, _metadata=metadata, _parent=config)
    config.__dict__.update(_metadata=metadata, _content=nodes, _parent=None, _flags_cache=None)
    return config
