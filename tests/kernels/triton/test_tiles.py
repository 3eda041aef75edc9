"""How a product is split into Triton's programs: tiles fit, cover, and are refused where they make no sense."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from milkweed.kernels.triton.launch import linear_launches
from milkweed.kernels.triton.layout import sort_layer
from milkweed.kernels.triton.tiles import (
    LOW,
    SMALL,
    SQUARE,
    VARIANTS,
    WIDE,
    DeviceProperties,
    Product,
    Variant,
    choose_tile,
    device_properties,
    tile_refusal,
)

WIDE_TMA = replace(WIDE, tma=True)
HOPPER = DeviceProperties((9, 0), 232448)
SMALL_SHARED = DeviceProperties((8, 6), 101376)


@given(
    st.sampled_from(VARIANTS),
    st.sampled_from([HOPPER, SMALL_SHARED]),
    st.integers(1, 30_000),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_tiles_fit_and_cover(
    variant: Variant, device: DeviceProperties, rows: int, blocks: int, n: int, p: int, interleaved: bool
) -> None:
    problem = Product(rows, blocks, n, p, interleaved, tma=p % 16 == 0)
    tile = choose_tile(variant, problem, device)
    across = blocks if interleaved else 1
    buffers = tile.stages - (0 if device.accumulates_apart else 1)
    columns = tile.BN + tile.REST
    shared = buffers * across * (tile.BM + columns) * tile.BK * 2
    assert shared <= device.shared_bytes
    assert all(size & (size - 1) == 0 and size >= 16 for size in (tile.BM, tile.BN, tile.REST or 16, tile.BK))
    assert not tile.tma or p % tile.BK == 0
    programs = -(-rows // tile.BM) * -(-n // columns) * (1 if interleaved else blocks)
    assert tile.programs(problem) == programs


def test_tiles_of_vit_b_waste_nothing() -> None:
    rows = 197 * 128
    first, hidden, last = (
        choose_tile(WIDE, Product(rows, 4, n, 192, interleaved, True), HOPPER)
        for n, interleaved in ((192, False), (768, False), (192, True))
    )
    assert (first.BM, first.BN, first.REST, first.BK) == (128, 128, 64, 64)
    assert (hidden.BM, hidden.BN + hidden.REST, hidden.BK) == (128, 256, 64)
    assert (last.BM, last.BN * 4, last.BK) == (64, 256, 32)


@pytest.mark.parametrize("variant", [WIDE, SQUARE, WIDE_TMA, replace(SQUARE, tma=True)])
def test_two_programs_of_an_interleaved_product_share_a_multiprocessor(variant: Variant) -> None:
    """A multiprocessor has 64 Ki registers; wgmma of fewer columns waits for shared memory."""
    for blocks, columns in ((1, 128), (2, 128), (4, 64), (8, 32)):
        tile = choose_tile(variant, Product(197 * 128, blocks, 192, 192, interleaved=True, tma=True), HOPPER)
        assert (tile.BN, 2 * tile.warps * 32 * 255 <= 65536) == (columns, True)
        shared = tile.stages * blocks * (tile.BM + tile.BN) * tile.BK * 2
        assert 2 * (shared + 1024) <= HOPPER.shared_bytes


@pytest.mark.parametrize(("rows", "variant"), [(1, SMALL), (63, SMALL), (64, LOW), (4096, LOW), (4097, WIDE_TMA)])
def test_without_a_measurement_few_rows_get_low_tiles(rows: int, variant: Variant) -> None:
    first = next(tile for tile in range(len(VARIANTS)) if tile_refusal(tile, rows, (9, 0)) is None)
    assert VARIANTS[first] == variant


def test_tiles_are_refused_where_they_make_no_sense() -> None:
    hopper, ampere = (9, 0), (8, 0)
    tma = next(i for i, variant in enumerate(VARIANTS) if variant.tma)
    small, wide = VARIANTS.index(SMALL), VARIANTS.index(WIDE)
    assert all(tile_refusal(small, rows, ampere) is None for rows in (1, 4096))
    assert all(tile_refusal(wide, rows, ampere) is None for rows in (128, 100_000))
    assert tile_refusal(tma, 10_000, hopper) is None
    assert "memory accelerator" in str(tile_refusal(tma, 10_000, ampere))
    assert "10000 rows" in str(tile_refusal(small, 10_000, hopper))
    assert "are not for 5 rows" in str(tile_refusal(tma, 5, hopper))
    assert (
        str(tile_refusal(wide, 10_000, hopper)) == "tiles of 128 rows are loaded by the tensor memory accelerator here"
    )
    assert tile_refusal(wide, 10_000, (10, 0)) is None
    assert "tile 99" in str(tile_refusal(99, 1, hopper))


@pytest.mark.parametrize(
    ("major", "setting", "pdl"), [(8, None, False), (9, None, True), (12, "1", True), (9, "0", False)]
)
def test_launches_are_dependent_from_hopper_on_unless_switched_off(
    major: int, setting: str | None, pdl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(major=major, minor=0, shared_memory_per_block_optin=232448)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.delenv("MILKWEED_PDL", raising=False)
    if setting:
        monkeypatch.setenv("MILKWEED_PDL", setting)
    device = device_properties.__wrapped__(torch.device("cuda"))
    assert device == DeviceProperties((major, 0), 232448, pdl)
    layer = sort_layer(torch.randn(4, 8, 8), torch.randn(4, 8, 8), None, 32, torch.float16)
    x, y = torch.randn(2, 64, 32).half()
    for launch in linear_launches(x, layer, None, 0, y, LOW, device):
        assert launch.constants["PDL"] == launch.options.get("launch_pdl", False) == pdl
