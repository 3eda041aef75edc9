"""The endpoint of protocols that have no error for an item: a request fails with its first bad image."""

from collections.abc import Sequence

from starlette.types import Scope

from ...inference.results import TopClasses
from ..api.classify import Classify
from ..errors import ServiceError
from ..http.parameters import read_query
from ..scheduler.request import Outcome
from ..service.inference_handler import image_error
from ..service.params import ClassifyParams
from ..telemetry.context import RequestContext

IN_QUERY = ("top_k", "threshold")
"""Parameters beside the model's name: answers of these protocols have no place for an embedding."""


class WholeRequest(Classify):
    """Its path may name the model, `name`, and the `version`; top_k and threshold count in the URL."""

    streams, whole, parameters = False, True, ("model", *IN_QUERY)

    def asked(self, scope: Scope, context: RequestContext) -> dict[str, str]:
        """Read path and query; a version in the path counts as in the header X-Model-Version, which may repeat it."""
        path, asked = scope["path_params"], read_query(scope["query_string"], IN_QUERY)
        if "version" in path:
            version = path["version"].encode("latin-1", "replace")
            header = context.headers.setdefault(b"x-model-version", version)
            if header.strip() != version:
                said = f"X-Model-Version is {header[:40].decode('latin-1')!r}, the URL's {path['version'][:40]!r}"
                raise ServiceError("bad_request", said)
        return {"model": path["name"], **asked} if "name" in path else asked


def rows_of(params: ClassifyParams, outcomes: Sequence[Outcome]) -> list[list[tuple[str, float]]]:
    """The labels and scores of each image, best first. Raises ServiceError where one failed, which names its place."""
    rows = []
    for place, outcome in enumerate(outcomes):
        if not isinstance(outcome, TopClasses):
            raise image_error(outcome, place, len(outcomes))
        best = zip(outcome.index, outcome.score, strict=True)
        rows.append([(params.model.labels[i].label, score) for i, score in best if score >= params.threshold])
    return rows
