// Resizes 8-bit RGB as Pillow does, to the bit: fixed-point weights of 22 bits, 8-bit values between the horizontal pass and
// the vertical one.
#pragma once

#include "../cpu/csrc/vectors.h"

namespace milkweed {

// The filter of an axis: each of `count` outputs is a weighted sum of `taps` inputs from its start on.
struct Axis {
  const int32_t *starts, *weights;
  int32_t count, taps;
};

namespace ISA {

constexpr int kWeightBits = 22;

typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint8_t u8x8 __attribute__((vector_size(8)));

// Half of the last bit that is kept: sums start from it, so that the shift rounds.
static inline i32x8 rounding_bias() { return i32x8{} + (1 << (kWeightBits - 1)); }

// By the intrinsic: gcc 12 converts lane by lane, which takes four times as long.
static inline i32x8 zero_extend_u8(const void* from) {
#if defined(__AVX2__)
  return (i32x8)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  return __builtin_convertvector(load<u8x8>(from), i32x8);
#endif
}

static inline void store_u8(uint8_t* to, i32x8 sums) {
  sums >>= kWeightBits;
#if defined(__AVX2__)
  const __m256i words = _mm256_packs_epi32((__m256i)sums, (__m256i)sums);
  const __m128i both = _mm_unpacklo_epi64(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64((__m128i*)to, _mm_packus_epi16(both, both));
#else
  sums = sums < 0 ? i32x8{} : sums;
  sums = sums > 255 ? i32x8{} + 255 : sums;
  store(to, __builtin_convertvector(sums, u8x8));
#endif
}

// Pixels of three bytes to pixels of four, two at a time: each weight is repeated four times for either pixel.
static void resize_row(const uint8_t* row, const Axis& axis, const int32_t* weights, uint8_t* to) {
  for (int i = 0; i < axis.count; i += 2, to += 8) {
    const uint8_t* first = row + 3 * axis.starts[i];
    const uint8_t* second = row + 3 * axis.starts[i + 1 < axis.count ? i + 1 : i];
    i32x8 sums = rounding_bias();
    for (int tap = 0; tap < axis.taps; tap++, weights += 8) {
      const uint32_t pixels[2] = {load<uint32_t>(first + 3 * tap), load<uint32_t>(second + 3 * tap)};
      sums += zero_extend_u8(pixels) * load<i32x8>(weights);
    }
    store_u8(to, sums);
  }
}

// Bytes of rows, eight at a time.
static void resize_column(const uint8_t* rows, int row_bytes, const int32_t* weights, int taps, uint8_t* to) {
  for (int i = 0; i < row_bytes; i += 8) {
    i32x8 sums = rounding_bias();
    for (int tap = 0; tap < taps; tap++)
      sums += zero_extend_u8(rows + (long)tap * row_bytes + i) * weights[tap];
    store_u8(to + i, sums);
  }
}

// The horizontal weights as `resize_row` reads them; those of the last pixel twice where the count is odd.
static void repeat_weights(const Axis& axis, int32_t* to) {
  for (int i = 0; i < axis.count; i += 2)
    for (int tap = 0; tap < axis.taps; tap++)
      for (int lane = 0; lane < 8; lane++)
        *to++ = axis.weights[(i + (lane > 3 && i + 1 < axis.count)) * axis.taps + tap];
}

// Pixels (height, width, 3) to (down.count, 2 ceil(across.count / 2), 4), of whose four bytes the last is meaningless.
// Of the pixels no row or column is read but those that the axes name. The scratch has room for the repeated weights, a row of the
// image and one byte, and each row that `down` reads.
static void resize(const uint8_t* pixels, int width, const Axis& across, const Axis& down, char* scratch, uint8_t* out) {
  const int row_bytes = (across.count + 1) / 2 * 8;
  int32_t* weights = (int32_t*)scratch;
  uint8_t* row = (uint8_t*)(weights + (long)row_bytes * across.taps);
  uint8_t* lines = row + 3L * width + 1;
  repeat_weights(across, weights);
  const int first = down.starts[0], last = down.starts[down.count - 1] + down.taps;
  const int left = across.starts[0], right = across.starts[across.count - 1] + across.taps;
  for (int y = first; y < last; y++) {
    memcpy(row + 3L * left, pixels + 3L * (y * (long)width + left), 3L * (right - left));  // four bytes of the last are read
    resize_row(row, across, weights, lines + (long)(y - first) * row_bytes);
  }
  for (int y = 0; y < down.count; y++)
    resize_column(lines + (long)(down.starts[y] - first) * row_bytes, row_bytes, down.weights + (long)y * down.taps,
                  down.taps, out + (long)y * row_bytes);
}

}  // namespace ISA
}  // namespace milkweed
