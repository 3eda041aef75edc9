"""Writes what an image of a request got: classes, an embedding, or an error."""

from ...inference.results import TopClasses
from ..scheduler.request import Outcome
from ..service.params import ClassifyParams


def result_json(params: ClassifyParams, outcome: Outcome, where: str = "") -> bytes:
    """One entry of `results`; `where` begins an error's message where a request has several images."""
    model, form, head = params.model, params.embedding, params.head
    if not isinstance(outcome, TopClasses):
        return model.result_json(outcome, where, params.threshold)
    if head is not None:
        entry = head.result_json(outcome.embedding, params.top_k, params.threshold)
    else:
        entry = model.result_json(outcome, where, params.threshold) if params.classes else b"{}"
    if form is None:
        return entry
    return b'%b%b"embedding": %b}' % (entry[:-1], b", " if params.classes else b"", form.json(outcome.embedding))
