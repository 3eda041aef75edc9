"""The file of a head against the safetensors library, its scores against numpy, and files that are none."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from milkweed.models.bundle.safetensors_file import read_arrays
from milkweed.models.heads import embedding_head
from milkweed.models.heads.embedding_head import parse_head

from .plain_head import expected, make_head, nearest_head


def packed(arrays: dict[str, Any] | None = None, **metadata: Any) -> bytes:
    """A file of the safetensors library, right but for what is given."""
    given = {"weight": np.eye(3, 5, dtype="f4")} if arrays is None else arrays
    about = {"labels": '["a", "b", "c"]', "normalize": "true", **metadata}
    return save(given, {name: value for name, value in about.items() if value is not None})


@pytest.mark.parametrize("normalize", [True, False])
def test_scores_are_those_of_numpy(normalize: bool) -> None:
    head = make_head(7, 20, normalize=normalize)
    embeddings = np.random.default_rng(1).normal(size=(9, 20)).astype("f4")
    scores = np.stack([head.probabilities(row) for row in embeddings])
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected(head, embeddings), rtol=1e-6)


def test_no_embedding_and_no_weight_in_float32_overflows() -> None:
    largest = np.finfo("f4").max
    head = make_head(weight=np.full((4, 3), float(largest)) * [[1], [-1], [1], [0]], scale=float(largest))
    for normalize in (True, False):
        loud = parse_head(make_head(weight=head.weight, scale=head.scale, normalize=normalize).to_bytes())
        for embedding in (np.full(3, largest), np.zeros(3, "f4"), np.full(3, -largest)):
            scores = loud.probabilities(embedding)
            assert np.isfinite(scores).all()
            assert scores.sum() == pytest.approx(1)


def test_its_file_is_safetensors_and_is_read_again(tmp_path: Path) -> None:
    head = make_head(model_version="abc123", normalize=False)
    data, file = head.to_bytes(), tmp_path / "a.head.safetensors"
    file.write_bytes(data)
    assert data == make_head(model_version="abc123", normalize=False).to_bytes()
    with safe_open(file, "numpy") as opened:
        np.testing.assert_array_equal(opened.get_tensor("weight"), head.weight)
        np.testing.assert_array_equal(opened.get_tensor("bias"), head.bias)
        assert opened.get_tensor("scale") == head.scale
        about = opened.metadata()
    assert (about["normalize"], about["model_version"]) == ("false", "abc123")
    assert [label["label"] for label in json.loads(about["labels"])] == [label.label for label in head.labels]
    again = parse_head(data)
    assert (again.labels, again.scale, again.normalize) == (head.labels, head.scale, False)
    assert again.version == hashlib.sha256(data).hexdigest()[:12]
    np.testing.assert_array_equal(again.weight, head.weight)
    assert read_arrays(file).metadata == about


def test_bias_scale_and_model_version_may_be_left_out() -> None:
    head = parse_head(packed())
    assert (head.scale, head.bias.tolist(), head.model_version, head.normalize) == (1, [0, 0, 0], "", True)
    assert [(label.id, label.label) for label in head.labels] == [("0", "a"), ("1", "b"), ("2", "c")]
    half = parse_head(packed({"weight": np.eye(3, 5, dtype="f2"), "scale": np.array([9], "f4")}))
    assert (half.scale, half.weight.dtype, half.width) == (9, np.float64, 5)


def rows(**changes: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {"weight": np.eye(3, 5, dtype="f4"), **changes}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a safetensors file: 0 bytes"),
        (b"PK\x03\x04" + bytes(60), "not a safetensors file"),
        (b"\x80\x04\x95" + bytes(60), "truncated"),  # a pickle
        (packed()[:-1], "truncated"),
        (packed() + b"0", "too long"),
        (packed({"a": np.zeros(2, "f4")}), "its tensors are ['a']: must be weight, maybe bias, scale and classes"),
        (packed(rows(more=np.zeros(2, "f4"))), "its tensors are ['more', 'weight']"),
        (packed({"weight": np.zeros(15, "f4")}), "weight is float32 [15]: must be (rows, width) in F32 or F16"),
        (packed({"weight": np.zeros((3, 0), "f4")}), "weight is float32 [3, 0]"),
        (packed({"weight": np.zeros((3, 5))}), "weight is float64 [3, 5]: must be (rows, width) in F32 or F16"),
        (packed({"weight": np.zeros((3, 5), "i4")}), "weight is int32 [3, 5]"),
        (packed(rows(bias=np.zeros(5, "f4"))), "bias is float32 [5]: must be (rows) in"),
        (packed(rows(scale=np.zeros(3, "f4"))), "scale is float32 [3]: must be () in"),
        (packed({"weight": np.full((3, 5), np.nan, "f4")}), "weight has a value that is not a finite number"),
        (packed(rows(bias=np.array([0, np.inf, 0], "f4"))), "bias has a value that is not a finite number"),
        (packed(rows(scale=np.array(np.nan, "f4"))), "scale has a value that is not a finite number"),
        (packed(rows(scale=np.array(0, "f4"))), "scale is 0: must be above 0"),
        (packed(labels=None), "labels in its metadata: "),
        (packed(labels="[1]"), "labels in its metadata: entry 0 must be"),
        (packed(labels="not JSON"), "labels in its metadata: not JSON"),
        (packed(labels='["a", "b"]'), "2 labels for 3 rows of weight"),
        (packed(labels='["a", "b", "a"]'), "the label 'a' is there 2 times"),
        (packed(normalize=None), "normalize in its metadata is None: must be true or false"),
        (packed(normalize="yes"), "normalize in its metadata is 'yes'"),
        (save(rows()), "normalize in its metadata is None"),
    ],
)
def test_a_file_that_is_no_head_is_refused_in_a_line(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        parse_head(data)
    assert "\n" not in str(caught.value)


def test_a_file_of_too_many_bytes_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_head, "MAX_HEAD_BYTES", len(packed()) - 1)
    with pytest.raises(ValueError, match=f"more than {len(packed()) - 1} bytes, the limit of a head"):
        parse_head(packed())


def test_the_nearest_images_decide() -> None:
    head = nearest_head()
    again = parse_head(head.to_bytes())
    assert (again.k, len(again.labels), again.weight.shape) == (5, 4, (30, 3))
    assert again.to_bytes() == head.to_bytes()
    embeddings = np.random.default_rng(1).normal(size=(20, 3)).astype("f4")
    found = np.array([again.probabilities(row) for row in embeddings])
    np.testing.assert_allclose(found, expected(head, embeddings), rtol=1e-5, atol=1e-7)
    assert (found == 0).any()  # a class that none of the five is of
    every = nearest_head(k=10**6)
    np.testing.assert_allclose(every.probabilities(embeddings[0]), expected(every, embeddings)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("classes", "k", "words"),
    [
        (np.array([0, 1, 3], "i4"), "2", "classes are 0 to 3, there are 3 labels"),
        (np.array([0, 1, -1], "i4"), "2", "classes are -1 to 1, there are 3 labels"),
        (np.array([0, 1], "i4"), "2", "classes is int32 [2]: must be (rows) in I32"),
        (np.array([0, 1, 2], "f4"), "2", "classes is float32 [3]: must be (rows) in I32"),
        (np.array([0, 1, 2], "i4"), "0", "k in its metadata is '0': must be a whole number above 0"),
        (np.array([0, 1, 2], "i4"), None, "k in its metadata is None: must be a whole number above 0"),
        (np.array([0, 1, 2], "i4"), "9" * 5000, "must be a whole number above 0"),
    ],
)
def test_images_of_no_class_are_refused(classes: NDArray[Any], k: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        parse_head(packed(rows(classes=classes), **({} if k is None else {"k": k})))
    assert len(str(caught.value)) < 300
