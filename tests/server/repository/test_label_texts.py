"""Labels by their places, as text and as BYTES."""

import struct

import numpy as np

from milkweed.server.repository.label_texts import LabelTexts


def test_places_give_text_and_bytes_and_no_place_gives_nothing() -> None:
    texts = LabelTexts(["tench", "Bär", ""])
    places = np.array([1, 0, -1, 2, 1], np.int32)
    wanted = ["Bär", "tench", "", "", "Bär"]
    assert texts.at(places) == wanted
    assert texts.bytes_at(places) == b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in wanted)
    assert texts.at(places[:0]) == []
    assert texts.bytes_at(places[:0]) == b""
