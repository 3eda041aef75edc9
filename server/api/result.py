"""Writes what an image of a request got: classes, an embedding, or an error."""

from ...inference.results import TopClasses
from ..scheduler.request import Outcome
from ..service.params import ClassifyParams


def result_json(params: ClassifyParams, outcome: Outcome, where: str = "") -> bytes:
    """One entry of `results`; `where` begins an error's message where a request has several images."""
    model, form = params.model, params.embedding
    if form is None or not isinstance(outcome, TopClasses):
        return model.result_json(outcome, where, params.threshold)
    embedding = b'"embedding": %b}' % form.json(outcome.embedding)
    if not params.classes:
        return b"{" + embedding
    return b"%b, %b" % (model.result_json(outcome, where, params.threshold)[:-1], embedding)
