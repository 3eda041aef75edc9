"""Heads fitted in closed form against refits without each image, and against a search of the scale."""

import numpy as np
import pytest
from numpy.typing import NDArray

from milkweed.models.heads import fit as fitting
from milkweed.models.heads.embedding_head import normalized
from milkweed.models.heads.fit import KS, METHODS, PENALTIES, SCALES, fit_means, fit_nearest, fit_ridge

Array = NDArray[np.float64]
LINEAR = ("ridge", "means")


def clusters(classes: int = 3, each: int = 7, width: int = 5, spread: float = 1.0) -> tuple[Array, NDArray[np.int64]]:
    """Embeddings of length 1 around a centre a class; classes of different sizes."""
    rng = np.random.default_rng(classes * 100 + width)
    targets = np.repeat(np.arange(classes), [each + number for number in range(classes)])
    centres = rng.normal(size=(classes, width))
    return normalized(centres[targets] + spread * rng.normal(size=(len(targets), width))), targets


def solved(embeddings: Array, one_hot: Array, penalty: float) -> tuple[Array, Array]:
    """Ridge regression by its normal equations, with a column of ones for the bias, which has no penalty."""
    x = np.hstack([embeddings, np.ones((len(embeddings), 1))])
    weights = np.diag([penalty] * embeddings.shape[1] + [0.0])
    both = np.linalg.solve(x.T @ x + weights, x.T @ one_hot)
    return both[:-1].T, both[-1]


def log_likelihood(scores: Array, targets: NDArray[np.int64], scale: float) -> float:
    logits = scale * scores
    logits = logits - logits.max(1, keepdims=True)
    return float(np.mean(logits[np.arange(len(targets)), targets] - np.log(np.exp(logits).sum(1))))


def penalties(embeddings: Array) -> Array:
    s = np.linalg.svd(embeddings - embeddings.mean(0), compute_uv=False)
    return np.asarray(PENALTIES * np.mean(s**2))


@pytest.mark.parametrize(("classes", "each", "width"), [(3, 7, 5), (2, 2, 40), (6, 3, 16)])
def test_scores_of_ridge_without_an_image_are_those_of_a_refit(classes: int, each: int, width: int) -> None:
    embeddings, targets = clusters(classes, each, width)
    fit, one_hot = fit_ridge(embeddings, targets), np.eye(classes)[targets]
    weights = [solved(embeddings, one_hot, penalty) for penalty in penalties(embeddings)]
    [place] = [place for place, (weight, _) in enumerate(weights) if np.allclose(weight, fit.weight, rtol=1e-5)]
    np.testing.assert_allclose(fit.bias, weights[place][1], rtol=1e-6)
    for image in range(len(targets)):
        others = np.arange(len(targets)) != image
        weight, bias = solved(embeddings[others], one_hot[others], penalties(embeddings)[place])
        np.testing.assert_allclose(fit.left_out[image], weight @ embeddings[image] + bias, rtol=1e-6, atol=1e-9)


def test_ridge_takes_the_penalty_of_the_largest_likelihood() -> None:
    embeddings, targets = clusters(4, 5, 12, spread=1.5)
    fit, one_hot, rows = fit_ridge(embeddings, targets), np.eye(4)[targets], range(len(targets))
    best = []
    for penalty in penalties(embeddings):
        refits = [solved(np.delete(embeddings, row, 0), np.delete(one_hot, row, 0), penalty) for row in rows]
        scores = np.array([weight @ embeddings[row] + bias for row, (weight, bias) in enumerate(refits)])
        best.append(max(log_likelihood(scores, targets, scale) for scale in np.geomspace(1e-2, 1e4, 400)))
    assert fit.log_likelihood == pytest.approx(max(best), abs=2e-3)
    weight, _ = solved(embeddings, one_hot, penalties(embeddings)[int(np.argmax(best))])
    np.testing.assert_allclose(fit.weight, weight, rtol=1e-6, atol=1e-9)


def test_scores_of_means_without_an_image_are_those_of_a_refit() -> None:
    embeddings, targets = clusters()
    fit = fit_means(embeddings, targets)
    for image in range(len(targets)):
        others = np.arange(len(targets)) != image
        means = np.array([embeddings[others & (targets == each)].mean(0) for each in range(3)])
        cosines = means @ embeddings[image] / np.linalg.norm(means, axis=1)
        np.testing.assert_allclose(fit.left_out[image], cosines, rtol=1e-9)
    means = np.array([embeddings[targets == each].mean(0) for each in range(3)])
    np.testing.assert_allclose(fit.weight, means / np.linalg.norm(means, axis=1, keepdims=True), rtol=1e-9)
    assert not fit.bias.any()


@pytest.mark.parametrize("method", LINEAR)
def test_the_scale_makes_the_right_classes_most_probable(method: str) -> None:
    embeddings, targets = clusters(4, 9, 6, spread=1.2)
    fit = METHODS[method](embeddings, targets)
    slack, rows = 1 / (len(targets) + 2), np.arange(len(targets))
    aims = np.full(fit.left_out.shape, slack / 4)
    aims[rows, targets] += 1 - slack

    def likelihood(scale: float) -> float:
        logits = scale * fit.left_out
        return float((aims * (logits - np.log(np.exp(logits).sum(1, keepdims=True)))).sum())

    scales = fit.scale * np.geomspace(0.5, 2, 41)
    assert max(scales, key=likelihood) == pytest.approx(fit.scale)
    assert fit.log_likelihood == pytest.approx(log_likelihood(fit.left_out, targets, fit.scale))


@pytest.mark.parametrize("method", LINEAR)
def test_scores_that_are_all_right_have_a_finite_scale(method: str) -> None:
    embeddings, targets = clusters(3, 20, 8, spread=0.01)
    fit = METHODS[method](embeddings, targets)
    assert (fit.left_out.argmax(1) == targets).all()
    top = np.exp(fit.scale * fit.left_out)
    top /= top.sum(1, keepdims=True)
    assert 0.97 < top.max(1).mean() < 0.9999  # 63 images prove no more


@pytest.mark.parametrize("method", METHODS)
def test_labels_by_chance_give_no_confidence(method: str) -> None:
    rng = np.random.default_rng(0)
    embeddings, targets = normalized(rng.normal(size=(900, 10))), np.arange(900) % 3
    fit = METHODS[method](embeddings, targets)
    assert fit.log_likelihood == pytest.approx(np.log(1 / 3), abs=0.02)


def test_images_that_are_all_alike_are_fitted_too() -> None:
    embeddings, targets = normalized(np.ones((6, 4))), np.array([0, 0, 0, 1, 1, 1])
    for fit in (METHODS[name](embeddings, targets) for name in LINEAR):
        assert np.isfinite(fit.weight).all()
        assert fit.log_likelihood == pytest.approx(np.log(0.5), abs=1e-3)


def votes(embeddings: Array, targets: NDArray[np.int64], image: int, k: int, scale: float) -> Array:
    """The shares of the classes among the k images nearest to one, which is left out."""
    cosines = [(-float(row @ embeddings[image]), place) for place, row in enumerate(embeddings) if place != image]
    shares = np.zeros(targets.max() + 1)
    for negative, place in sorted(cosines)[:k]:
        shares[targets[place]] += np.exp(-scale * (negative - min(cosines)[0]))
    return shares / shares.sum()


def test_shares_of_nearest_images_are_those_of_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "AT_ONCE", 7)
    embeddings, targets = clusters(4, 6, 8, spread=0.8)
    fit, count = fit_nearest(embeddings, targets), len(targets)
    np.testing.assert_array_equal(fit.weight, embeddings)
    expected = [votes(embeddings, targets, image, fit.k, fit.scale) for image in range(count)]
    np.testing.assert_allclose(fit.left_out, expected, rtol=1e-9, atol=1e-12)
    slack, likelihood = 1 / (count + 2), {}
    for k in (k for k in KS if k < count):
        for scale in SCALES:
            right = [votes(embeddings, targets, image, k, scale)[targets[image]] for image in range(count)]
            likelihood[k, scale] = np.mean(np.log((1 - slack) * np.array(right) + slack / 4))
    assert likelihood[fit.k, fit.scale] == pytest.approx(max(likelihood.values()))
    assert fit.log_likelihood == pytest.approx(max(likelihood.values()))


def test_two_images_are_enough_for_the_nearest() -> None:
    fit = fit_nearest(np.eye(4)[[0, 0, 1, 1]], np.array([0, 0, 1, 1]))
    assert fit.k in KS
    assert fit.left_out.argmax(1).tolist() == [0, 0, 1, 1]
