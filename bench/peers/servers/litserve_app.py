"""LitServe: multipart (it answers raw bodies with 500), batches of 16, its quicker queue."""

import sys
from typing import Any

import litserve
from fastapi import Request
from served_model import MODEL, classify, decode, load

MAX_BATCH, BATCH_SECONDS = 16, 0.005


class Served(litserve.LitAPI):
    """The model."""

    def setup(self, device: str) -> None:
        self.model = load(MODEL)

    def decode_request(self, request: Request) -> Any:  # it reads the annotation; what comes is the form
        form: Any = request
        return decode(form["image"].file.read())

    def batch(self, inputs: list[Any]) -> Any:
        return inputs

    def predict(self, batch: Any) -> Any:
        return classify(self.model, batch)

    def unbatch(self, output: Any) -> Any:
        return output

    def encode_response(self, output: Any) -> Any:
        return {"class": output[0], "score": output[1]}


if __name__ == "__main__":
    api = Served(max_batch_size=MAX_BATCH, batch_timeout=BATCH_SECONDS)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(port=int(sys.argv[1]), host="127.0.0.1", generate_client_file=False, log_level="error")
