"""JPEG 2000 codestreams: size, layout and the work they make, marker by marker (ISO/IEC 15444-1, annexes A and B).

A decoder makes structures for every tile, precinct and code-block that a header declares, whether or not bytes
follow: 3 KB can declare millions. And a body that ends early, or lacks tiles, decodes to part of a picture without
an error. So the walk goes through every tile-part to the end, counts what is declared, and bounds it.
"""

from dataclasses import dataclass

from ..errors import InputError, undecodable, unsupported

SOC_SIZ = b"\xff\x4f\xff\x51"
MAX_TILES = 1024
MAX_TILE_PARTS = 4096
MAX_SEGMENTS = 4096  # of all headers
MAX_BLOCKS = 131_072  # code-blocks of all tiles
MAX_PRECINCTS = 131_072
MAX_PACKETS = 524_288  # precincts x layers
MAX_SAMPLE_PLANES = 72_000_000  # 12.5 ns each: 2.1 megapixels of RGB in 8 bits without loss
MAX_LEVELS = 32
_LEAST_PLANES = 4  # what a block of high throughput costs at least, whatever it claims

_ALL, _DERIVED = -1, 1
_COD, _COC, _QCD, _QCC, _SOT, _SOD, _EOC = 0xFF52, 0xFF53, 0xFF5C, 0xFF5D, 0xFF90, 0xFF93, 0xFFD9
# CAP, TLM, PRF, PLM, PLT, CPF, CRG, COM
_HARMLESS = frozenset((0xFF50, 0xFF55, 0xFF56, 0xFF57, 0xFF58, 0xFF59, 0xFF63, 0xFF64))
_REFUSED = {0xFF5E: "a region of interest", 0xFF5F: "changes of progression", 0xFF60: "packed headers"}
_REFUSED |= dict.fromkeys((_COD, _COC, _QCD, _QCC), "a coding style of a tile's own, or two")
_REFUSED |= {0xFF61: "packed headers", **dict.fromkeys(range(0xFF74, 0xFF79), "transforms of part 2")}


@dataclass(frozen=True)
class Codestream:
    """What the headers say.

    Args:
        depth: bits a sample.
        end: behind the end marker.
    """

    width: int
    height: int
    components: int
    depth: int
    end: int


@dataclass(frozen=True)
class _Size:
    """The SIZ segment: area, px on the reference grid, its tiles."""

    width: int
    height: int
    tile_width: int
    tile_height: int
    tiles: int
    components: int
    depth: int


@dataclass(frozen=True)
class _Coding:
    """How a component is coded: log2 of the code-block's sides, and of each resolution's precincts, coarse first."""

    block: tuple[int, int]
    precincts: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Style:
    """The codings and the quantisation (Sqcd and on) of the components, and the number of layers."""

    layers: int
    codings: list[_Coding]
    quantisation: list[bytes]


@dataclass
class _Walk:
    """Where the walk stands, and what it found; `end` bounds it."""

    data: bytes
    position: int
    end: int
    segments: int = 0

    def take(self, size: int) -> int:
        """The next bytes as a number."""
        start, self.position = self.position, self.position + size
        if self.position > self.end:
            raise undecodable("JPEG 2000 codestream is cut off")
        return int.from_bytes(self.data[start : self.position], "big")

    def segment(self) -> bytes:
        """The content of the segment whose length is at `position`; steps behind it."""
        start = self.position
        length = self.take(2)
        self.segments += 1
        if length < 2 or start + length > self.end:
            raise undecodable("JPEG 2000 header is cut off or has a segment of impossible length")
        if self.segments > MAX_SEGMENTS:
            raise undecodable(f"JPEG 2000 has more than {MAX_SEGMENTS} header segments")
        self.position = start + length
        return self.data[start + 2 : self.position]


def read_codestream(data: bytes, start: int, end: int) -> Codestream:
    """The header of data[start:end]; raises InputError where it is broken, cut off, exotic or too dear."""
    if data[start : start + 4] != SOC_SIZ:
        raise undecodable("JPEG 2000 codestream does not start with its size")
    walk = _Walk(data, start + 4, end)
    size = _read_size(walk.segment())
    _check_work(size, _read_main_header(walk, size))
    _walk_tile_parts(walk, size)
    return Codestream(size.width, size.height, size.components, size.depth, walk.position)


def _read_size(body: bytes) -> _Size:
    if len(body) < 36 or len(body) != 36 + 3 * int.from_bytes(body[34:36], "big"):
        raise undecodable("JPEG 2000 size segment is of the wrong length")
    across, down, left, top, tile_w, tile_h, tile_x, tile_y = (
        int.from_bytes(body[i : i + 4], "big") for i in range(2, 34, 4)
    )
    # the first tile must hold the first pixel (B.3)
    if not (tile_x <= left < min(across, tile_x + tile_w) and tile_y <= top < min(down, tile_y + tile_h)):
        raise undecodable("JPEG 2000 size segment has no pixel or no tile for it")
    if max(across, down) >= 1 << 31:
        raise undecodable(f"JPEG 2000 lies on a grid of {across}x{down}: limit 2147483647")
    tiles = -(-(across - tile_x) // tile_w) * -(-(down - tile_y) // tile_h)
    if tiles > MAX_TILES:
        raise undecodable(f"JPEG 2000 has {tiles} tiles: limit {MAX_TILES}")
    components = len(body) // 3 - 12
    depth = _depth(body[36:], components)
    width, height = across - left, down - top
    return _Size(width, height, min(tile_w, width), min(tile_h, height), tiles, components, depth)


def _depth(samples: bytes, components: int) -> int:
    """Bits a sample: 8, or 8 to 16 of grey alone."""
    if not 1 <= components <= 4:
        raise unsupported(f"JPEG 2000 has {components} components: expected 1 to 4")
    if samples[1::3] + samples[2::3] != b"\1" * 2 * components:
        raise unsupported("JPEG 2000 has sub-sampled components: expected all of one size")
    depths = {value + 1 for value in samples[::3]}
    if any(depth > 128 for depth in depths):
        raise unsupported("JPEG 2000 has signed samples: expected unsigned")
    most = 16 if components == 1 else 8
    if len(depths) > 1 or not 8 <= min(depths) <= most:
        said = ", ".join(map(str, sorted(depths)))
        raise unsupported(f"JPEG 2000 has {said} bits a sample: expected 8" + (" to 16" if components == 1 else ""))
    return min(depths)


def _read_main_header(walk: _Walk, size: _Size) -> _Style:
    """Step to the first tile-part; how the components are coded."""
    layers = 0
    codings: dict[int, _Coding] = {}  # _ALL is the default
    quantisation: dict[int, bytes] = {}
    while (marker := walk.take(2)) != _SOT:
        body = walk.segment()
        component = body[0] if marker in (_COC, _QCC) else _ALL
        if marker == _COD and _ALL not in codings:
            layers = int.from_bytes(body[2:4], "big")
            codings[_ALL] = _read_coding(body[5:], bool(body[0] & 1))
        elif marker == _COC and component < size.components and component not in codings:
            codings[component] = _read_coding(body[2:], bool(body[1] & 1))
        elif marker == _QCD and _ALL not in quantisation:
            quantisation[_ALL] = body
        elif marker == _QCC and component < size.components and component not in quantisation:
            quantisation[component] = body[1:]
        else:
            _check_segment(marker)
    if _ALL not in codings or _ALL not in quantisation or not layers:
        raise undecodable("JPEG 2000 does not say how it is coded")
    each = range(size.components)
    return _Style(
        layers, [codings.get(i, codings[_ALL]) for i in each], [quantisation.get(i, quantisation[_ALL]) for i in each]
    )


def _read_coding(body: bytes, own_precincts: bool) -> _Coding:
    """SPcod and SPcoc (A.6.1)."""
    levels, block = body[0], (body[1] + 2, body[2] + 2)
    precincts = [(code & 15, code >> 4) for code in body[5:]] if own_precincts else [(15, 15)] * (levels + 1)
    whole = len(body) == 5 + (levels + 1 if own_precincts else 0)
    if not whole or levels > MAX_LEVELS or max(block) > 10 or sum(block) > 12:
        raise undecodable("JPEG 2000 coding style is broken")
    if any(0 in precinct for precinct in precincts[1:]):
        raise undecodable("JPEG 2000 has precincts of half a sample")
    return _Coding(block, tuple(precincts))


def _check_segment(marker: int) -> None:
    """What may stand in any header must change nothing in the layout."""
    if marker in _REFUSED:
        raise unsupported(f"JPEG 2000 with {_REFUSED[marker]} is not accepted")
    if marker not in _HARMLESS:
        raise undecodable(f"JPEG 2000 has a segment {marker:04x} where none may be")


def _check_work(size: _Size, style: _Style) -> None:
    """Bound what is declared: about the most that one tile can have, times the tiles."""
    blocks = precincts = planes = 0
    for coding, quantisation in zip(style.codings, style.quantisation, strict=True):
        for resolution, (across, down) in enumerate(coding.precincts):
            halvings = len(coding.precincts) - 1 - resolution
            width, height = (-(-side >> halvings) for side in (size.tile_width, size.tile_height))
            precincts += _parts(width, across) * _parts(height, down)
            halved, bands = (1, range(3 * resolution - 2, 3 * resolution + 1)) if resolution else (0, range(1))
            width, height = (width + halved >> halved), (height + halved >> halved)
            block = (min(coding.block[0], across - halved), min(coding.block[1], down - halved))
            blocks += len(bands) * _parts(width, block[0]) * _parts(height, block[1])
            planes += sum(_bit_planes(quantisation, band) + 1 for band in bands) * width * height
    _check_counts(blocks * size.tiles, precincts * size.tiles, precincts * size.tiles * style.layers)
    if planes * size.tiles > MAX_SAMPLE_PLANES:
        what = f"JPEG 2000 is {size.width}x{size.height} px of {planes * size.tiles} samples times bit planes"
        raise InputError("too_many_pixels", f"{what}: limit {MAX_SAMPLE_PLANES}")


def _check_counts(blocks: int, precincts: int, packets: int) -> None:
    for count, limit, what in (
        (blocks, MAX_BLOCKS, "code-blocks"),
        (precincts, MAX_PRECINCTS, "precincts"),
        (packets, MAX_PACKETS, "packets"),
    ):
        if count > limit:
            raise undecodable(f"JPEG 2000 has up to {count} {what}: limit {limit}")


def _bit_planes(quantisation: bytes, band: int) -> int:
    """Bit planes that the code-blocks of a band may claim, whether or not bytes are there (equations E-2 and E-5)."""
    style, guard = quantisation[0] & 31, quantisation[0] >> 5
    if style == _DERIVED:
        exponent = max(0, (quantisation[1] >> 3) - max(0, band - 1) // 3)
    else:
        exponent = quantisation[1 + band * (1 if style == 0 else 2)] >> 3
    return max(_LEAST_PLANES, guard + exponent - 1)


def _parts(length: int, log2: int) -> int:
    """Most cells of a grid that a line of samples can touch."""
    return (length + (1 << log2) - 2 >> log2) + 1


def _walk_tile_parts(walk: _Walk, size: _Size) -> None:
    """Step over every tile-part to the end marker; every tile must have one."""
    seen: set[int] = set()
    for _ in range(MAX_TILE_PARTS):
        start = walk.position - 2
        body = walk.segment()
        if len(body) != 8:
            raise undecodable("JPEG 2000 tile-part header is broken")
        tile, length = int.from_bytes(body[:2], "big"), int.from_bytes(body[2:6], "big")
        finish = start + length if length else walk.end - 2
        if tile >= size.tiles or finish > walk.end - 2:
            raise undecodable(f"JPEG 2000 is cut off or has a tile {tile} of {size.tiles}")
        seen.add(tile)
        while (marker := walk.take(2)) != _SOD:
            walk.segment()
            _check_segment(marker)
        if walk.position > finish:
            raise undecodable("JPEG 2000 tile-part is shorter than its header")
        walk.position = finish
        marker = walk.take(2)
        if marker == _EOC:
            break
        if marker != _SOT:
            raise undecodable("JPEG 2000 tile-part is not followed by another or the end")
    else:
        raise undecodable(f"JPEG 2000 has more than {MAX_TILE_PARTS} tile-parts")
    if len(seen) < size.tiles:
        raise undecodable(f"JPEG 2000 has {len(seen)} of its {size.tiles} tiles")
