"""The fast loader against the reference: geometry, codecs, modes, orientations, threads, failures."""

import logging
import struct
import threading
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageOps

from milkweed.kernels.cpu.uint8_images import Uint8Images
from milkweed.loaders import CpuLoader, ImageLimits, PillowLoader, PreprocessSpec, create_loader, validate
from milkweed.loaders.decode import cpu as cpu_loader_module
from milkweed.loaders.preprocess import orientation

ANY_ASPECT = ImageLimits(max_aspect=100_000)
SPEC = PreprocessSpec(size=64)


def compare(levels, body, spec, limits=ANY_ASPECT):
    """Hold the fast loader against the reference, to the bit, by floats and by levels; returns its levels."""
    expected, loader = levels(PillowLoader(spec, limits), body, spec), CpuLoader(spec, limits)
    assert np.array_equal(levels(loader, body, spec), expected)
    loader.gives_uint8 = True
    given = loader.load([body], [validate(body, limits)]).pixels
    assert isinstance(given, Uint8Images)
    assert np.array_equal(given, loader.load([body], [None]).pixels)  # whose header nobody has read yet
    return expected


def test_levels_are_given_unless_an_input_is_among_the_images(picture, encoded):
    png, gif, array, jpeg = (encoded(picture(90, 70), kind) for kind in ("PNG", "GIF", "NPY", "JPEG"))
    values = BytesIO()
    np.save(values, np.random.default_rng(0).standard_normal((3, 64, 64)).astype(np.float32))
    loader, bodies = CpuLoader(SPEC), [png, gif, array, values.getvalue(), jpeg[:-60], png]
    expected = loader.load(bodies)
    assert list(expected.errors) == [4]
    loader.gives_uint8 = True
    for batch, kind in ((range(6), np.ndarray), ((0, 1, 2, 4, 5), Uint8Images)):
        found = loader.load([bodies[i] for i in batch], [validate(bodies[i], ImageLimits()) for i in batch])
        assert isinstance(found.pixels, kind)
        assert [batch[place] for place in found.errors] == [4]
        rows = [expected.ok.index(batch[place]) for place in found.ok]
        assert np.array_equal(found.pixels, expected.pixels[rows])


@pytest.mark.parametrize("width", [97, 256, 333, 500])
@pytest.mark.parametrize("height", [96, 131, 255, 375])
def test_lossless_ramp_is_not_shifted(width, height, encoded, levels):
    y, x = np.mgrid[0:height, 0:width]
    ramp = np.stack([x % 256, y % 256, (x + y) % 2 * 255], -1).astype(np.uint8)
    compare(levels, encoded(Image.fromarray(ramp), "PNG"), PreprocessSpec(size=96))


@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 0.95, 1.0, 1.4])
@pytest.mark.parametrize("size", [(300, 203), (203, 300), (20, 31), (1, 1)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_geometry_equals_reference(size, crop_pct, interpolation, picture, encoded, levels):
    spec = PreprocessSpec(size=111, crop_pct=crop_pct, interpolation=interpolation)
    compare(levels, encoded(picture(*size), "PNG"), spec)


def test_extreme_aspect_equals_reference(picture, encoded, levels):
    for size in ((8000, 2), (2, 8000), (3000, 30), (30, 3000)):
        compare(levels, encoded(picture(*size), "PNG"), PreprocessSpec(size=32))


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}, {"quality": 100}]
)
def test_jpeg_equals_reference(options, picture, encoded, levels):
    compare(levels, encoded(picture(500, 375), "JPEG", **options), PreprocessSpec())


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("size", [(400, 300), (301, 257), (1025, 800), (400, 160), (160, 700)])
@pytest.mark.slow_beyond(10)
def test_scaled_jpegs_are_near_the_exact_ones(size, value, picture, encoded, levels, monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = value
    exact, fast = (PreprocessSpec(size=32, jpeg_scaling=how) for how in ("exact", "fast"))
    for options in ({}, {"progressive": True}, {"subsampling": 0}):
        body = encoded(picture(*size).resize(size, Image.Resampling.BICUBIC), "JPEG", exif=exif, **options)
        expected = compare(levels, body, exact)
        found = levels(CpuLoader(fast), body, fast).astype(np.int16)
        assert 0 < np.abs(found - expected).mean() < 3
        assert np.array_equal(levels(PillowLoader(fast), body, fast), expected)
        refused = [CpuLoader(spec).load([body[:-30]]).errors[0].message for spec in (exact, fast)]
        assert refused[0] == refused[1]
        with monkeypatch.context() as patch:
            patch.setattr(cpu_loader_module, "part_refusal", lambda: "not built")
            assert np.array_equal(levels(CpuLoader(fast), body, fast), found)
    lossless = encoded(picture(*size), "PNG", exif=exif)
    assert np.array_equal(compare(levels, lossless, fast), compare(levels, lossless, exact))


def test_a_photograph_too_small_to_be_scaled_has_the_same_bits(picture, encoded, levels):
    body, fast = encoded(picture(500, 375), "JPEG"), PreprocessSpec(jpeg_scaling="fast")
    assert np.array_equal(compare(levels, body, fast), compare(levels, body, PreprocessSpec()))


@pytest.mark.parametrize("format", ["PNG", "WEBP", "NPY"])  # the others: sandbox/test_formats.py
def test_formats_equal_reference(format, picture, encoded, levels):
    compare(levels, encoded(picture(90, 70), format), SPEC)


@pytest.mark.parametrize(
    ("mode", "format"),
    [
        *((mode, "PNG") for mode in ("1", "L", "P", "LA", "RGBA", "I;16")),
        *((mode, "JPEG") for mode in ("L", "CMYK")),
        ("RGBA", "WEBP"),
    ],
)
def test_modes_equal_reference(mode, format, picture, encoded, levels):
    image = picture(90, 70)
    if mode == "I;16":
        image = Image.fromarray((np.asarray(image.convert("L")).astype(np.uint16) << 8) + 77)
    else:
        image = image.convert(mode)
    compare(levels, encoded(image, format), SPEC)


def test_16_bit_grey_is_scaled_not_saturated(encoded, levels):
    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    body = encoded(Image.fromarray(ramp), "PNG")
    spec = PreprocessSpec(size=64, crop_pct=1.0)
    for loader in (PillowLoader(spec), CpuLoader(spec)):
        assert np.array_equal(levels(loader, body, spec)[0], ramp >> 8)


def test_palette_with_transparency_raises_no_warning(picture, encoded, levels):
    image = picture(90, 70).quantize(16)
    body = encoded(image, "PNG", transparency=bytes(range(0, 256, 16)))
    compare(levels, body, SPEC)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_is_applied(format, value, picture, encoded, levels):
    exif = Image.Exif()
    exif[0x0112] = value
    options = {"lossless": True} if format == "WEBP" else {}
    body = encoded(picture(147, 90), format, exif=exif, **options)
    upright = ImageOps.exif_transpose(Image.open(BytesIO(body)))
    expected = compare(levels, body, SPEC)
    assert np.array_equal(expected, levels(PillowLoader(SPEC), encoded(upright, "PNG"), SPEC))


def test_orientation_can_be_ignored(picture, encoded, levels):
    exif = Image.Exif()
    exif[0x0112] = 6
    spec = PreprocessSpec(size=64, orientation="ignore")
    turned, plain = (encoded(picture(147, 90), "PNG", **tag) for tag in ({"exif": exif}, {}))
    for loader in (PillowLoader(spec), CpuLoader(spec)):
        assert np.array_equal(levels(loader, turned, spec), levels(loader, plain, spec))


def test_normalise_is_torchvisions_to_the_bit(encoded):
    transforms = pytest.importorskip("torchvision.transforms")
    every = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, 2)
    body = encoded(Image.fromarray(every), "PNG")
    spec = PreprocessSpec(size=16, crop_pct=1.0)
    expected = transforms.Normalize(spec.mean, spec.std)(transforms.ToTensor()(Image.fromarray(every)))
    for loader in (PillowLoader(spec), CpuLoader(spec)):
        assert np.array_equal(loader.load([body]).pixels[0], expected)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads_do_not_change_a_bit(num_threads, picture, encoded):
    bodies = [encoded(picture(60 + 7 * seed, 50, seed), "JPEG") for seed in range(9)]
    alone = [CpuLoader(SPEC).load([body]).pixels[0] for body in bodies]
    loader = CpuLoader(SPEC, num_threads=num_threads)
    result = loader.load(bodies)
    loader.close()
    assert result.pixels.flags.c_contiguous
    assert np.array_equal(result.pixels, np.stack(alone))


def test_small_images_stay_in_the_calling_thread(picture, encoded, monkeypatch):
    spec = PreprocessSpec(size=32)
    small, large = picture(64, 64), picture(65, 64)
    bodies = [encoded(image, format) for format in ("NPY", "PNG", "JPEG", "WEBP") for image in (small, large)]
    bodies += [b"\xff\xd8\xff\xe0 no image", encoded(small, "PNG")[:-30]]
    infos = [*map(validate, bodies[:-2]), None, validate(encoded(small, "PNG"))]
    reference = PillowLoader(spec).load(bodies, infos)
    load_one, threads = CpuLoader.load_one, dict[bytes, str]()

    def noted(self, data, *rest):
        threads[data] = threading.current_thread().name
        load_one(self, data, *rest)

    monkeypatch.setattr(CpuLoader, "load_one", noted)
    found = CpuLoader(spec, num_threads=2).load(bodies, infos)
    here = {bodies.index(body) for body, name in threads.items() if name == threading.current_thread().name}
    assert here == {0, 2, 4, 9}  # a WebP of that size decodes for longer than a hand-over takes
    assert found.ok == reference.ok == list(range(8))
    assert {place: error.code for place, error in found.errors.items()} == {8: "undecodable", 9: "undecodable"}
    assert np.array_equal(found.pixels, reference.pixels)
    alone = [
        CpuLoader(spec, num_threads=2).load([body], [info]).pixels
        for body, info in zip(bodies[:8], infos[:8], strict=True)
    ]
    assert np.array_equal(found.pixels, np.concatenate(alone))


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("size", [(147, 90), (40, 333), (333, 40)])
def test_without_the_kernels_pillow_gives_the_same_bits(value, size, picture, encoded, monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = value
    body = encoded(picture(*size), "PNG", exif=exif)
    expected = CpuLoader(SPEC)
    found = expected.load([body]).pixels
    for module in (orientation, cpu_loader_module):
        monkeypatch.setattr(module, "resize_refusal", lambda: "not built")
    without = CpuLoader(SPEC)
    assert np.array_equal(without.load([body]).pixels, found)
    assert "Pillow resize (not built)" in without.description
    assert "resize by our kernel" in expected.description


@pytest.mark.parametrize("name", ["cpu", "pillow"])
def test_truncated_and_corrupt_are_refused_everywhere(name, picture, encoded):
    loader = create_loader(name, SPEC)
    good = encoded(picture(300, 200), "JPEG", quality=90)
    for format in ("JPEG", "PNG", "WEBP", "BMP", "PPM", "AVIF"):
        body = encoded(picture(300, 200), format)
        for share in (0.3, 0.6, 0.9, 0.99):
            result = loader.load([good, body[: int(len(body) * share)], good])
            assert result.ok == [0, 2], (format, share)
            assert result.errors[1].code == "undecodable"
            assert np.array_equal(result.pixels[0], result.pixels[1])


def test_png_with_a_flipped_byte_is_refused(picture, encoded):
    body = bytearray(encoded(picture(60, 60), "PNG"))
    body[len(body) // 2] ^= 1
    assert "checksum" in CpuLoader(SPEC).load([bytes(body)]).errors[0].message


def test_metadata_bombs_never_reach_the_decoder(picture, encoded, levels):
    body = encoded(picture(60, 60), "PNG")
    bomb = zlib.compress(bytes(50_000_000), 9)
    text = b"zTXtk\0\0" + bomb
    part = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    stuffed = body[:33] + part * 20 + body[33:]
    assert np.array_equal(levels(CpuLoader(SPEC), stuffed, SPEC), levels(CpuLoader(SPEC), body, SPEC))


@pytest.mark.parametrize("error", [MemoryError, SystemError, AttributeError])
def test_unexpected_error_stays_in_its_slot_and_is_logged_once(error, picture, encoded, monkeypatch, caplog):
    bodies = [encoded(picture(30, 30, seed), "PNG") for seed in range(3)]
    expected = CpuLoader(SPEC).load([bodies[0], bodies[2]]).pixels
    genuine = cpu_loader_module.decode

    def failing(data, info):
        if data == bodies[1]:
            raise error("secret bytes")
        return genuine(data, info)

    monkeypatch.setattr(cpu_loader_module, "decode", failing)
    loader = CpuLoader(SPEC)
    with caplog.at_level(logging.WARNING):
        result = loader.load(bodies)
    assert result.ok == [0, 2]
    assert result.errors[1].code == "undecodable"
    assert "secret" not in result.errors[1].message
    assert np.array_equal(result.pixels, expected)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert error.__name__ in caplog.text


def test_size_in_the_body_must_be_the_headers(picture, encoded):
    body = encoded(picture(40, 30), "PNG")
    for name in ("cpu", "pillow"):
        result = create_loader(name, SPEC).load([body], [validate(encoded(picture(30, 40), "PNG"))])
        assert result.errors[0].code == "undecodable"


def test_create_loader_says_what_it_chose():
    assert "2 threads" in create_loader("cpu", SPEC, num_threads=2).description
    with pytest.raises(ValueError, match="'opencv': expected auto, cpu, dali, pillow"):
        create_loader("opencv", SPEC)
    with pytest.raises(ValueError, match="num_threads is 0"):
        create_loader("cpu", SPEC, num_threads=0)
