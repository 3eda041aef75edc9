"""Merging tokens: against a plain loop, at odd counts, with sizes."""

import pytest
import torch
from torch import Tensor

from milkweed.kernels.triton.token_merging import matched, merged, places, rows

from ...models.token_reference import merged_by_loops


def tokens(count: int, prefix: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (2, count, 6), their sizes and keys (2, count - prefix, 5)."""
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(2, count, 6, generator=generator).to(dtype)
    size = torch.randint(1, 5, (2, count, 1), generator=generator).float()
    return x, size, torch.randn(2, count - prefix, 5, generator=generator)


@pytest.mark.parametrize(("count", "prefix", "merging"), [
    (17, 1, 3), (18, 1, 8), (17, 1, 7), (17, 2, 7), (16, 0, 7), (4, 1, 1), (3, 0, 1), (9, 5, 1),
])  # fmt: skip
def test_merging_is_what_a_plain_loop_does(count: int, prefix: int, merging: int) -> None:
    x, size, keys = tokens(count, prefix)
    importance = torch.rand(2, count - prefix, generator=torch.Generator().manual_seed(1))
    for taken_off in (None, importance):
        found = merged(x, size, *matched(keys, taken_off), merging, prefix)
        for image in range(2):
            wanted = merged_by_loops(
                list(x[image]), size[image, :, 0].tolist(), keys[image],
                [0.0] * len(keys[image]) if taken_off is None else taken_off[image].tolist(), merging, prefix,
            )  # fmt: skip
            torch.testing.assert_close(found[0][image], torch.stack(wanted[0]), rtol=0, atol=1e-6)
            assert found[1][image, :, 0].tolist() == wanted[1]
        assert found[1].sum(1).tolist() == size.sum(1).tolist()  # no patch is lost
        torch.testing.assert_close((found[0] * found[1]).sum(1), (x * size).sum(1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_without_sizes_count_as_one_patch_each(dtype: torch.dtype) -> None:
    x, _, keys = tokens(33, 1, dtype)
    order, nearest = matched(keys)
    alone, sized = (merged(x, size, order, nearest, 9, 1) for size in (None, torch.ones(2, 33, 1)))
    assert torch.equal(alone[0], sized[0])
    assert torch.equal(alone[1], sized[1])


def test_tokens_that_stay_keep_their_bits_and_large_sets_their_places_in_bfloat16() -> None:
    """bfloat16 tells no whole numbers apart above 256."""
    x, size, keys = tokens(601, 1, torch.bfloat16)
    order, nearest = matched(keys.bfloat16())
    y, sizes = merged(x, size, order, nearest, 200, 1)
    assert y.dtype is torch.bfloat16
    assert torch.equal(y[:, 0], x[:, 0])
    kept = 1 + 2 * order[:, 200:].sort(-1).values
    assert torch.equal(y[:, 1:101], rows(x, kept))
    for image in range(2):
        whole = merged_by_loops(
            list(x[image].float()), size[image, :, 0].tolist(), keys[image].bfloat16().float(), [0.0] * 600, 200, 1
        )
        torch.testing.assert_close(y[image].float(), torch.stack(whole[0]), rtol=2e-2, atol=2e-2)
        assert sizes[image, :, 0].tolist() == whole[1]


def test_large_values_do_not_overflow_in_float16() -> None:
    x = torch.full((1, 9, 4), 3e4, dtype=torch.float16)
    size = torch.full((1, 9, 1), 30.0)
    y, _ = merged(x, size, *matched(torch.randn(1, 8, 4)), 3, 1)
    assert torch.equal(y, x[:, :6])


@pytest.mark.parametrize(("patches", "merging"), [(16, 3), (17, 3), (17, 8), (3, 1), (16, 7)])
def test_every_patch_finds_its_group_again(patches: int, merging: int) -> None:
    _, _, keys = tokens(patches, 0)
    order, nearest = matched(keys)
    found = places(order, nearest, merging, patches)
    eye = torch.eye(patches).expand(2, -1, -1)
    shares, _ = merged(eye, torch.ones(2, patches, 1), order, nearest, merging, 0)
    assert found.shape == (2, patches)
    assert torch.equal(found, shares.argmax(dim=1))  # each patch has a share in one group alone
    assert torch.equal((shares > 0).sum(dim=1), torch.ones(2, patches, dtype=torch.int64))


def test_an_image_is_merged_alike_in_any_company() -> None:
    x, size, keys = tokens(33, 1, torch.float32)
    alone = merged(x[1:], size[1:], *matched(keys[1:]), 9, 1)
    both = merged(x, size, *matched(keys), 9, 1)
    torch.testing.assert_close(both[0][1:], alone[0], rtol=0, atol=1e-6)
    assert torch.equal(both[1][1:], alone[1])


def test_blank_keys_are_merged_too() -> None:
    order, nearest = matched(torch.zeros(1, 7, 4))
    assert sorted(order[0].tolist()) == [0, 1, 2, 3]
    assert set(nearest[0].tolist()) <= {0, 1, 2}


def test_of_equal_similarities_the_first_merges() -> None:
    order, nearest = matched(torch.ones(2, 197, 4))
    assert torch.equal(order, torch.arange(99).expand(2, -1))
    assert not nearest.any()
