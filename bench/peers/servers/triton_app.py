"""Triton with a Python backend (nvidia-pytriton): binary tensors by its HTTP protocol, batches of 16."""

import sys
import tempfile
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor, TimeoutAction
from pytriton.triton import Triton, TritonConfig
from served_model import BODY, MODEL, SHAPE, classify, decode, load

MAX_BATCH, BATCH_MICROSECONDS = 16, 5000


def batcher(bounded: bool) -> Any:
    """Triton's own, as it comes, or with a queue bounded in length and time."""
    policy = None
    if bounded:
        policy = QueuePolicy(
            timeout_action=TimeoutAction.REJECT, default_timeout_microseconds=250_000, max_queue_size=64
        )
    return DynamicBatcher(max_queue_delay_microseconds=BATCH_MICROSECONDS, default_queue_policy=policy)


def main(port: int, bounded: bool) -> None:
    """Serve until the process is told to end."""
    model = load(MODEL)

    @batch
    def infer(image: Any) -> dict[str, Any]:
        bodies = [row.item() if row.dtype == object else row.tobytes() for row in image]
        classes = classify(model, [decode(body) for body in bodies])
        return {"class": np.array([[pair[0]] for pair in classes], np.int64)}

    home = tempfile.mkdtemp() + "/workspace"
    config = TritonConfig(http_port=port, grpc_port=port + 1, metrics_port=port + 2, model_repository=None)
    with Triton(config=config, workspace=home) as triton:
        triton.bind(
            model_name="served",
            infer_func=infer,
            inputs=[Tensor(name="image", dtype=BODY, shape=SHAPE)],
            outputs=[Tensor(name="class", dtype=np.int64, shape=(1,))],
            config=ModelConfig(max_batch_size=MAX_BATCH, batcher=batcher(bounded)),
        )
        triton.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), "bounded" in sys.argv[2:])
