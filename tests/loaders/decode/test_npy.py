"""NPY: pictures load as the PNG of the same pixels, inputs go in as they are, everything else is refused by name."""

import io
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milkweed.loaders import (
    CODES,
    CpuLoader,
    ImageLimits,
    InputError,
    PillowLoader,
    PreprocessSpec,
    create_loader,
    validate,
)
from milkweed.loaders.dataset.folder import read_levels
from milkweed.loaders.decode.npy import LARGEST_INPUT, array_images, count_images, split_images
from milkweed.loaders.sandbox.sandbox import Sandbox

SPEC = PreprocessSpec(size=48)
LOADERS = (CpuLoader, PillowLoader)


def npy(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    body = io.BytesIO()
    np.lib.format.write_array(body, array, version)
    return body.getvalue()


def with_header(text: str, values: bytes = b"") -> bytes:
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode("latin-1") + values


def refusal(body: bytes, limits: ImageLimits | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        validate(body, *([limits] if limits else []))
    assert caught.value.code in CODES
    return caught.value


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("size", [(97, 60), (31, 80), (48, 48), (1, 1)])
@pytest.mark.parametrize("fortran", [False, True])
def test_pictures_load_as_their_png_bit_for_bit(loader, size, fortran, picture, encoded):
    colours = np.asarray(picture(*size))
    grey = np.asarray(picture(*size).convert("L"))
    order = np.asfortranarray if fortran else np.ascontiguousarray
    bodies = [encoded(picture(*size), "PNG"), npy(order(colours))]
    bodies += [encoded(picture(*size).convert("L"), "PNG"), npy(order(grey)), npy(order(grey[..., None]))]
    result = loader(SPEC).load(bodies)
    assert not result.errors
    assert np.array_equal(result.pixels[0], result.pixels[1])
    assert np.array_equal(result.pixels[2], result.pixels[3])
    assert np.array_equal(result.pixels[2], result.pixels[4])
    assert not np.array_equal(result.pixels[0], result.pixels[2])


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", ">f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_inputs_go_in_as_they_are(loader, dtype, order):
    values = np.random.default_rng(0).normal(0, 3, (3, 48, 48)).astype(dtype)
    values.flat[:4] = [LARGEST_INPUT, -LARGEST_INPUT, 2**-24, -0.0]
    result = loader(SPEC).load([npy(np.array(values, order=order))])
    assert not result.errors
    assert np.array_equal(result.pixels[0].view("u4"), values.astype("<f4").view("u4"))


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -65505.0])
def test_values_that_no_model_can_answer_stay_in_their_slot(loader, value):
    good = np.ones((3, 48, 48), "f4")
    bad = good.copy()
    bad[1, 2, 3] = value
    result = loader(SPEC).load([npy(good), npy(bad), npy(good)])
    assert result.ok == [0, 2]
    assert result.errors[1].code == "undecodable"
    limit = "no numbers or too large: limit 65504 and -65504"
    assert result.errors[1].message == f"NPY of float32 has 1 values that are {limit}"


@pytest.mark.parametrize("name", ["cpu", "pillow"])
def test_an_input_of_another_size_is_refused_with_both(name):
    error = create_loader(name, SPEC).load([npy(np.zeros((3, 32, 32), "f2"))]).errors[0]
    assert (error.code, error.message) == (
        "undecodable",
        "NPY is float16 (3, 32, 32): the model takes (3, 48, 48)",
    )


def test_an_input_is_no_picture_of_a_data_set(tmp_path, picture):
    (tmp_path / "a.npy").write_bytes(npy(np.zeros((3, 48, 48), "f4")))
    (tmp_path / "b.npy").write_bytes(npy(np.asarray(picture(40, 30))))
    with pytest.raises(InputError, match="is a model's input: expected a picture of uint8"):
        read_levels(tmp_path / "a.npy", SPEC, True, Sandbox())
    assert np.array_equal(read_levels(tmp_path / "b.npy", SPEC, True, Sandbox()), np.asarray(picture(40, 30)))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_are_read(version, picture):
    info = validate(npy(np.asarray(picture(7, 5)), version))
    assert (info.format, info.width, info.height, info.mode) == ("NPY", 7, 5, "RGB")


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }   \n",
        '{"shape":(2,3),"descr":"u1","fortran_order":False}',
        "{ 'fortran_order' : True , 'shape' : ( 2 , 3 , ) , 'descr' : '<u1' , }",
    ],
)
def test_headers_are_read_as_python_reads_them(text):
    assert validate(with_header(text, bytes(6))).pixels == 6


@pytest.mark.parametrize(
    ("array", "code", "said"),
    [
        (np.zeros((3, 4, 4)), "unsupported_format", "float64 is not accepted: expected uint8, float16 or float32"),
        (np.zeros((3, 4, 4), ">f8"), "unsupported_format", "big-endian float64"),
        (np.zeros((4, 4), "i4"), "unsupported_format", "int32"),
        (np.zeros((4, 4), "u2"), "unsupported_format", "uint16"),
        (np.zeros((4, 4), "?"), "unsupported_format", "bool"),
        (np.array([{}, []], object), "unsupported_format", "objects"),
        (np.zeros(2, "U3"), "unsupported_format", "text"),
        (np.zeros(2, "V2"), "unsupported_format", "raw records"),
        (np.zeros(2, [("x", "f4")]), "unsupported_format", "records"),
        (np.zeros((), "u1"), "undecodable", "uint8 (): expected (H, W, 3)"),
        (np.zeros((3, 4, 5), "u1"), "undecodable", "uint8 (3, 4, 5): expected (H, W, 3)"),
        (np.zeros((4, 4, 3), "f4"), "undecodable", "float32 (4, 4, 3): expected (3, S, S)"),
        (np.zeros((3, 4, 5), "f4"), "undecodable", "float32 (3, 4, 5): expected (3, S, S)"),
        (np.zeros((1, 2, 4, 4, 3), "u1"), "undecodable", "(1, 2, 4, 4, 3)"),
        (np.zeros((2, 0, 4, 3), "u1"), "undecodable", "(2, 0, 4, 3)"),
        (np.zeros((0, 5, 3), "u1"), "undecodable", "5x0 px"),
        (np.zeros((0, 4, 4, 3), "u1"), "empty", "holds 0 images"),
        (np.zeros((2, 4, 4, 3), "u1"), "undecodable", "holds 2 images: expected one"),
        (np.zeros((2, 4, 4, 3), "u1", order="F"), "unsupported_format", "Fortran order: expected C order"),
        (np.zeros((16385, 200), "u1"), "too_many_pixels", "side limit 16384 px"),
        (np.zeros((2, 202), "u1"), "too_many_pixels", "aspect ratio limit 100:1"),
        (np.zeros((4473, 4472), "u1"), "too_many_pixels", "limit 20 megapixels for NPY"),
    ],
)
def test_other_arrays_are_refused_by_name(array, code, said):
    error = refusal(npy(array))
    assert (error.code, said in error.message) == (code, True), error.message


@pytest.mark.parametrize("more", [-1, 1, 1000])
def test_the_length_must_be_the_shapes(more):
    body = npy(np.zeros((4, 5, 3), "u1"))
    error = refusal(body[:more] if more < 0 else body + bytes(more))
    assert error.message == f"NPY of uint8 (4, 5, 3) has {60 + more} bytes of values: expected 60"


def test_a_shape_that_lies_costs_nothing():
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (999999999999, 999999999999, 3), }"
    assert refusal(with_header(text, bytes(100))).code == "undecodable"
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (999999999999, 0, 5, 3), }"
    assert count_images(with_header(text)) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"\x93NUMPY",
        b"\x93NUMPY\1\0",
        b"\x93NUMPY\4\0" + bytes(100),
        b"\x93NUMPY\1\1" + bytes(100),
        b"\x93NUMPY\2\0\xff\xff\xff\xff{",
        b"\x93NUMPY\1\0\xff\xff{" + bytes(70_000),
        with_header(""),
        with_header("{}"),
        with_header("None"),
        with_header("{'descr': '|u1', 'fortran_order': False}"),
        with_header("{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (1, 1)}", b"1"),
        with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1), 'more': 'x'}", b"1"),
        with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1)} + {}", b"1"),
        with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (1, -1)}", b"1"),
        with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1,, 1)}", b"1"),
        with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (1 1)}", b"1" * 11),
        with_header("{'descr': '|u1', 'fortran_order': False, 'shape': " + "1," * 300 + "}", b"1"),
        with_header("{'descr': '|u1', 'fortran_order': 0, 'shape': (1, 1)}", b"1"),
        with_header("{'descr': False, 'fortran_order': False, 'shape': (1, 1)}", b"1"),
        with_header("{'descr': __import__('os'), 'fortran_order': False, 'shape': (1, 1)}", b"1"),
        with_header("{'shape': " + "(" * 5000),
        with_header("{'a': 1if 2else 3}"),
    ],
)
def test_broken_headers_are_refused(body):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert refusal(body).code in ("undecodable", "unsupported_format")


@given(st.binary(max_size=300), st.sampled_from([b"", b"\1\0\x76\0", b"\1\0\x76\0{'descr': '|u1', 'fortran_order': "]))
def test_random_bytes_are_an_input_error(noise, start):
    with pytest.raises(InputError):
        validate(b"\x93NUMPY" + start + noise)
    assert split_images(b"\x93NUMPY" + start + noise) == [b"\x93NUMPY" + start + noise]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_what_numpy_writes_is_read_as_numpy_reads_it(data):
    dtype = data.draw(st.sampled_from(["|u1", "<f4", ">f4", "<f2", ">f2"]))
    side = data.draw(st.integers(1, 9))
    shape = (side, data.draw(st.integers(1, 9)), 3) if dtype == "|u1" else (3, side, side)
    count = data.draw(st.integers(1, 4))
    array = np.random.default_rng(0).integers(0, 256, (count, *shape)).astype(dtype)
    bodies = split_images(npy(array))
    assert count_images(npy(array)) == len(bodies) == count
    for body, image in zip(bodies, array, strict=True):
        found = np.load(io.BytesIO(body))
        assert found.dtype == image.dtype
        assert np.array_equal(found, image)
        assert validate(body).array.shape == shape


def test_other_bodies_are_one_image(picture, encoded):
    for body in (b"", b"\x93", encoded(picture(9, 9), "JPEG"), npy(np.zeros((4, 4, 3), "u1")), npy(np.zeros(4))):
        assert count_images(body) == 1
        assert split_images(body) == [body]
    turned = npy(np.zeros((2, 4, 4, 3), "u1", order="F"))
    assert split_images(turned) == [turned]


def test_plain_tensors_become_the_same_bodies():
    pictures = np.arange(2 * 5 * 4 * 3, dtype=np.uint8).reshape(2, 5, 4, 3)
    assert array_images("uint8", pictures.shape, pictures.tobytes()) == split_images(npy(pictures))
    assert array_images("uint8", [5, 4, 3], memoryview(pictures[0].tobytes())) == [npy(pictures[0])]
    for dtype in ("float16", "float32"):
        inputs = np.random.default_rng(0).normal(size=(3, 3, 8, 8)).astype(dtype)
        assert array_images(dtype, inputs.shape, inputs.tobytes()) == split_images(npy(inputs))
    [short] = array_images("uint8", (2, 5, 4, 3), bytes(7))
    assert refusal(short).message == "NPY of uint8 (2, 5, 4, 3) has 7 bytes of values: expected 120"
