"""Header validation tells the format by the bytes, names limits, refuses broken headers, and is cheap."""

import struct
import time
import zlib
from pathlib import Path

import pytest
from PIL import Image

from milkweed.loaders import CODES, FORMATS, ImageLimits, InputError, validate
from milkweed.loaders.headers.exif import orientation
from milkweed.loaders.headers.info import OPT_IN_FORMATS, SANDBOXED
from milkweed.loaders.headers.sniff import images_among

EVERY = ImageLimits(formats=FORMATS + OPT_IN_FORMATS)


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, depth: int = 8, colour: int = 2, between: bytes = b"") -> bytes:
    """A PNG whose header is right and whose picture is empty."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + between + body


def jpeg_header(width: int, height: int, sof: int = 0xC0, components: int = 3, bits: int = 8) -> bytes:
    """A JPEG up to its first scan."""
    frame = struct.pack(">BHHB", bits, height, width, components) + b"\1\x11\0" * components
    scan = bytes([components]) + b"\1\0" * components + b"\0\x3f\0"
    parts = [(sof, frame), (0xDA, scan)]
    return b"\xff\xd8" + b"".join(b"\xff" + bytes([m]) + struct.pack(">H", len(b) + 2) + b for m, b in parts)


def refusal(body: bytes, limits: ImageLimits | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        validate(body, *([limits] if limits else []))
    assert caught.value.code in CODES
    assert "\n" not in caught.value.message
    return caught.value


def refusal_code(body: bytes) -> str | None:
    try:
        validate(body, EVERY)
    except InputError as error:
        return error.code
    return None


@pytest.mark.parametrize("format", FORMATS + OPT_IN_FORMATS)
def test_validate_returns_format_and_size(format, picture, encoded):
    info = validate(encoded(picture(37, 23), format), EVERY)
    size = (0, 0) if format in SANDBOXED else (37, 23)  # only a sandbox reads those headers
    assert (info.format, info.width, info.height, info.frames, info.orientation) == (format, *size, 1, 1)
    assert info.sandboxed == (format in SANDBOXED)


@pytest.mark.parametrize("format", FORMATS + OPT_IN_FORMATS)
def test_validate_survives_every_cut(format, picture, encoded):
    body = encoded(picture(9, 7), format)
    for end in range(1, len(body), 1 if len(body) < 1500 else 7):
        assert refusal_code(body[:end]) in (None, "unsupported_format", "undecodable"), end


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "empty"),
        (b"hello, this is no picture", "unsupported_format"),
        (b"BMW builds cars, not bitmaps, and this is text", "unsupported_format"),
        (b"\xff\xd8\xff\xe0", "undecodable"),
        (b"\x89PNG\r\n\x1a\n", "undecodable"),
        (b"RIFF\x20\0\0\0WEBPVP8 ", "undecodable"),
        (b"P7\nWIDTH 1\n", "unsupported_format"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "unsupported_format"),
        (jpeg_header(8, 8, sof=0xF7), "unsupported_format"),
        (jpeg_header(8, 8, sof=0xC9), "unsupported_format"),
        (jpeg_header(8, 8, bits=12), "unsupported_format"),
        (jpeg_header(8, 0), "undecodable"),
        (jpeg_header(8, 8, components=2), "undecodable"),
        (png(0, 5), "undecodable"),
        (png(5, 5, depth=3), "undecodable"),
        (png(5, 5)[:-4], "undecodable"),
    ],
)
def test_validate_refuses_what_it_should(body, code):
    assert refusal(body).code == code


@pytest.mark.parametrize(
    ("body", "limits", "code", "said"),
    [
        (png(16385, 500), None, "too_many_pixels", "16385x500 px: side limit 16384 px"),
        (png(8000, 2), None, "too_many_pixels", "8000x2 px: aspect ratio limit 100:1"),
        (png(101, 10101), None, "too_many_pixels", "aspect ratio limit 100:1"),
        (png(5000, 4001), None, "too_many_pixels", "5000x4001 px: limit 20 megapixels for PNG"),
        (png(4000, 3001, depth=16), None, "too_many_pixels", "limit 12 megapixels for 16-bit PNG"),
        (jpeg_header(10000, 5001), None, "too_many_pixels", "10000x5001 px: limit 50 megapixels"),
        (jpeg_header(5000, 4001, sof=0xC2), None, "too_many_pixels", "20 megapixels for progressive JPEG"),
        (jpeg_header(4000, 3001, components=4), None, "too_many_pixels", "CMYK or lossless JPEG"),
        (b"\0\0\0\x1cftypavif" + bytes(8 << 20), None, "too_large", "8388620 bytes: limit 8388608 bytes for AVIF"),
        (b"P3 10 10 255\n" + bytes(20 << 20), None, "too_large", "limit 20971520 bytes"),
        (png(5, 5), ImageLimits(max_bytes=60), "too_large", "limit 60 bytes"),
        (png(5, 5), ImageLimits(max_pixels=24), "too_many_pixels", "5x5 px"),
    ],
)
def test_limits_are_named(body, limits, code, said):
    error = refusal(body, limits)
    assert error.code == code
    assert said in error.message


def test_a_format_can_be_left_out(picture, encoded):
    error = refusal(encoded(picture(8, 8), "AVIF"), ImageLimits(formats=("JPEG", "PNG")))
    assert error.code == "unsupported_format"
    said = "AVIF is not accepted: expected one of JPEG, PNG; a server takes AVIF where --formats names avif"
    assert error.message == said


@pytest.mark.parametrize("form", ["boxes", "codestream"])
def test_a_format_can_be_turned_on(form, picture, encoded):
    body = encoded(picture(8, 8), "JPEG2000", no_jp2=form == "codestream")
    error = refusal(body)
    assert error.code == "unsupported_format"
    assert error.message.startswith("JPEG 2000 is not accepted: expected one of JPEG, PNG, ")
    assert validate(body, EVERY).format == "JPEG2000"


@pytest.mark.parametrize("body", [png(100, 10000), png(5000, 4000), jpeg_header(10000, 5000)])
def test_sizes_on_the_limit_pass(body):
    assert validate(body).pixels <= 50_000_000


def test_jpeg_kinds_are_told_apart(picture, encoded):
    image = picture(40, 30)
    plain = validate(encoded(image, "JPEG"))
    progressive = validate(encoded(image, "JPEG", progressive=True))
    cmyk = validate(encoded(image.convert("CMYK"), "JPEG"))
    assert (plain.progressive, plain.scans, plain.turbo, plain.mode) == (False, 1, True, "RGB")
    assert (progressive.progressive, progressive.scans, progressive.cost) == (True, 10, "jpeg_scans")
    assert (cmyk.turbo, cmyk.mode, cmyk.cost) == (False, "CMYK", "jpeg_slow")


def test_scans_are_bounded_by_pixels(picture, encoded):
    body = encoded(picture(600, 500), "JPEG", progressive=True)
    last = body[body.rindex(b"\xff\xda") : -2]
    many = body[:-2] + last[:400] * 1500 + body[-2:]
    assert "more than 1000 scans" in refusal(many).message
    assert refusal(body, ImageLimits(max_scan_pixels=2_999_999)).code == "too_many_pixels"


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_is_read(format, value, picture, encoded):
    exif = Image.Exif()
    exif[0x0112] = value
    info = validate(encoded(picture(24, 16), format, exif=exif))
    assert info.orientation == value
    assert info.upright_size(True) == ((16, 24) if value >= 5 else (24, 16))
    assert info.upright_size(False) == (24, 16)


@pytest.mark.parametrize("block", [b"", b"Exif\0\0", b"II*\0", b"MM\0*\0\0\0\x08\xff\xff", b"junk" * 40])
def test_broken_exif_means_upright(block):
    assert orientation(block) == 1


def test_frames_are_counted_where_the_header_tells(picture, encoded):
    more = [picture(20, 20, seed) for seed in (1, 2)]
    for format in ("PNG", "WEBP"):
        assert validate(encoded(picture(20, 20), format, save_all=True, append_images=more)).frames == 3


def _hostile_headers(picture, encoded):
    jpeg = encoded(picture(8, 8), "JPEG")
    yield "jpeg segments", jpeg[:2] + b"\xff\xfe\0\2" * 4_000_000 + jpeg[2:]
    yield "jpeg padding", jpeg[:2] + b"\xff" * 16_000_000 + jpeg[2:]
    yield "jpeg junk", jpeg[:20] + bytes(16_000_000) + jpeg[20:]
    yield "png chunks", png(8, 8, between=chunk(b"tEXt", b"") * 1_300_000)
    yield (
        "webp chunks",
        b"RIFF"
        + struct.pack("<I", 16_000_030)
        + b"WEBPVP8X"
        + struct.pack("<I", 10)
        + bytes(4)
        + b"\7\0\0\7\0\0"
        + (b"abcd" + bytes(4)) * 2_000_001,
    )


def test_hostile_headers_cost_little(picture, encoded):
    """The quickest of three readings counts: a garbage collection of what other tests left is not its cost."""
    for name, body in _hostile_headers(picture, encoded):
        spent = []
        for _ in range(3):
            start = time.process_time()
            error = refusal(body)
            spent.append(time.process_time() - start)
            assert error.code == "undecodable", name
        assert min(spent) < 0.3, f"{name}: {min(spent):.2f} s"


def test_a_pointer_in_the_place_of_an_image_is_called_one() -> None:
    with pytest.raises(
        InputError, match=r"a Git LFS pointer \(git lfs pull fetches the image\) is not accepted"
    ) as caught:
        validate(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d4d\nsize 22883204\n")
    assert caught.value.code == "unsupported_format"


def test_images_are_told_by_name_or_first_bytes_and_others_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("0a1b2c", "photo.MPO", "b.jpg"):
        (tmp_path / name).write_bytes(jpeg_header(8, 8))
    (tmp_path / "torn.PNG").write_bytes(b"")
    for name in ("1.HEIC", "2.heic", "notes", "pointer.mpo"):
        (tmp_path / name).write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    found = images_among(tmp_path.iterdir())
    assert [path.name for path in found] == ["0a1b2c", "b.jpg", "photo.MPO", "torn.PNG"]
    (line,) = caplog.messages
    assert line.startswith("4 files are no images of a format that is read, and left out: 2 .heic, ")
    assert "1 without a suffix" in line
    assert "1 .mpo" in line


def test_nothing_is_said_where_all_are_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.png").write_bytes(png(8, 8))
    assert images_among([tmp_path / "a.png"]) == [tmp_path / "a.png"]
    assert not caplog.messages
