"""NoClassifier stands where a classifier would be in a model that is there for its embedding."""

from typing import Any, cast

from torch import Tensor, nn


class NoClassifier(nn.Module):
    """Gives what it reads.

    Args:
        width: values of the embedding.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x

    def extra_repr(self) -> str:
        return str(self.width)


def without_classifier(model: nn.Module) -> nn.Module:
    """Take the classifier out of a model, in place.

    Raises:
        ValueError: it has none that is one linear layer, or that reads other than as many values as it gives.
    """
    name = classifier_name(model)
    if name is None:
        raise ValueError(f"{type(model).__name__} has no classifier that is one linear layer, which could be left out")
    parent, _, leaf = name.rpartition(".")
    layer = cast(nn.Linear, model.get_submodule(name))
    if type(layer) is not nn.Linear:
        raise ValueError(f"its classifier is a {type(layer).__name__}, which pools too and cannot be left out")
    if layer.in_features != layer.out_features:
        raise ValueError(
            f"without a classifier it gives {layer.in_features} values, num_classes is {layer.out_features}"
        )
    setattr(model.get_submodule(parent), leaf, NoClassifier(layer.in_features))
    return model


def classifier_name(model: nn.Module) -> str | None:
    """Name the linear layer that makes a model's logits; None where there is no such layer, or more than one.

    Args:
        model: as `create_model` gives it.
    """
    find: Any = getattr(model, "get_classifier", None)
    layer = getattr(model, "head", None) if find is None else find()
    if not isinstance(layer, nn.Linear):
        return None
    return next((name for name, module in model.named_modules() if module is layer), None)
