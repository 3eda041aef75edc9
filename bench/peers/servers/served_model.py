"""What the apps serve: the graph of the bundle that PEER_MODEL names, or the tiny ViT where it names a state dict."""

import os
from pathlib import Path

MODEL = Path(os.environ["PEER_MODEL"])

if MODEL.is_dir():
    from graph_model import BODY, SHAPE, classify, decode, load
else:
    from tiny_vit import BODY, SHAPE, classify, decode, load

__all__ = ["BODY", "MODEL", "SHAPE", "classify", "decode", "load"]
