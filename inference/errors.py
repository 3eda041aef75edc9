"""The error of this room: a fault of ours that costs one image its answer."""

INTERNAL_MESSAGE = "internal error; the log has the details under this request id"


class InferenceError(Exception):
    """An image that got no answer through a fault of ours; the log says which. `code` is that of the HTTP error."""

    code = "internal"

    def __init__(self, message: str = INTERNAL_MESSAGE) -> None:
        super().__init__(message)
        self.message = message
