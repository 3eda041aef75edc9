// Attention over few tokens, queries in the lanes: the scores of all keys for a panel of queries, their softmax down the
// keys, and the sum of values. Nothing larger than a panel exists, and no lane ever has to be added to another.
#pragma once

#include "grid.h"

namespace milkweed {
namespace ISA {

constexpr int kPanelNr = 2, kPanel = kLanes * kPanelNr;

static inline int up_to(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// Of two rows, whose numbers differ in the bit STEP, what has that bit in either row or column changes places.
template <int STEP>
static inline void exchange(native_bits& a, native_bits& b) {
  native_bits low{}, high{};
  for (int j = 0; j < kNative; j++) {
    low[j] = j & STEP ? kNative + (j ^ STEP) : j;
    high[j] = j & STEP ? kNative + j : j | STEP;
  }
  const native_bits first = a;
  a = __builtin_shuffle(first, b, low);
  b = __builtin_shuffle(first, b, high);
}

// Exchanges rows and columns of a block: bit by bit, from STEP on.
template <int STEP>
static inline void exchange_all(native_bits (&block)[kNative]) {
#pragma GCC unroll 16
  for (int i = 0; i < kNative; i++)
    if (!(i & STEP)) exchange<STEP>(block[i], block[i | STEP]);
  if constexpr (2 * STEP < kNative) exchange_all<2 * STEP>(block);
}

// Exchange rows and columns of 16 x 16, in blocks as wide as a register.
static inline void transpose(u32x16 (&rows)[kLanes]) {
  constexpr int parts = kLanes / kNative, bytes = sizeof(native_bits);
  native_bits blocks[parts][parts][kNative];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i++)
#pragma GCC unroll 4
    for (int j = 0; j < parts; j++) blocks[i / kNative][j][i % kNative] = load<native_bits>((const char*)&rows[i] + j * bytes);
#pragma GCC unroll 16
  for (int i = 0; i < parts * parts; i++) exchange_all<1>(blocks[i / parts][i % parts]);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i++)
#pragma GCC unroll 4
    for (int j = 0; j < parts; j++) store((char*)&rows[i] + j * bytes, blocks[j][i / kNative][i % kNative]);
}

// Queries (count, width) bfloat16 as a panel of the product: [width / 2][kPanel][2].
static void pack_queries(const char* q, long ld, int count, int width, char* out) {
  const int steps = width / 2, padded = up_to(steps, kSteps);
  for (int first = 0; first < kPanel; first += kLanes) {
    for (int k = 0; k < padded; k += kLanes) {
      u32x16 rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++) rows[i] = first + i < count ? load<u32x16>(q + (first + i) * ld + 4 * k) : u32x16{};
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++)
        if (k + i < padded) store(out + ((k + i) * kPanel + first) * 4, k + i < steps ? rows[i] : u32x16{});
    }
  }
}

// Values (n, width) bfloat16 -> (width, 2 steps), zeros behind n.
static void transpose_values(const char* v, long ld, int n, int width, int steps, char* out) {
  for (int j = 0; j < steps; j += kLanes) {
    for (int d = 0; d < width; d += kLanes) {
      u32x16 rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++) {
        const int key = 2 * (j + i);
        const char* at = v + key * ld + 2 * d;
        const u16x16 even = key < n ? load<u16x16>(at) : u16x16{}, odd = key + 1 < n ? load<u16x16>(at + ld) : u16x16{};
        rows[i] = widened(even) | widened(odd) << 16;
      }
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++) store(out + ((long)(d + i) * up_to(steps, kLanes) + j) * 4, rows[i]);
    }
  }
}

// Softmax down n scores, in units of log 2, of 16 queries: pairs of keys as bfloat16 into a panel of `steps` k-steps, not
// yet divided by their sum. Returns the inverse of that. A key that stands for several patches counts as often.
template <bool WEIGHTED>
static inline f32x16 softmax(float* scores, const float* log_sizes, int n, int steps, char* panel) {
  if constexpr (WEIGHTED)
    for (int i = 0; i < n; i++) store(scores + i * kPanel, load<f32x16>(scores + i * kPanel) + all(log_sizes[i]));
  f32x16 top = load<f32x16>(scores), second = top;
  int i = 1;
  for (; i + 1 < n; i += 2) {
    top = larger(top, load<f32x16>(scores + i * kPanel));
    second = larger(second, load<f32x16>(scores + (i + 1) * kPanel));
  }
  for (; i < n; i++) top = larger(top, load<f32x16>(scores + i * kPanel));
  top = larger(top, second);
  f32x16 even_sum{}, odd_sum{};
  int k = 0;
  for (; 2 * k < n; k++) {
    const f32x16 even = exp2_of_negative(load<f32x16>(scores + 2 * k * kPanel) - top);
    f32x16 odd{};
    if (2 * k + 1 < n) odd = exp2_of_negative(load<f32x16>(scores + (2 * k + 1) * kPanel) - top);
    even_sum += even;
    odd_sum += odd;
    store(panel + k * kPanel * 4, ((u32x16)even + 0x8000) >> 16 | (((u32x16)odd + 0x8000) & 0xffff0000u));
  }
  for (; k < steps; k++) store(panel + k * kPanel * 4, u32x16{});
  return 1 / (even_sum + odd_sum);
}

struct Head {
  const char *q, *k, *v;
  const float* log_sizes;
  long ld;
  int n, queries, width;
};

// One head of one image; `scratch` holds transposed values, packed queries, scores, probabilities and sums.
template <int TO>
static void head(const Head& h, char* out, long ld_out, const float* scale, const float* bias, char* scratch) {
  const int at_once = rows_at_once(kPanelNr), keys = up_to(h.n, at_once), width = up_to(h.width, at_once);
  const int q_steps = up_to(h.width / 2, kSteps), v_steps = up_to((h.n + 1) / 2, kSteps);
  const long ld_v = 4L * up_to(v_steps, kLanes);
  char* values = scratch;
  char* queries = values + width * ld_v;
  float* scores = (float*)(queries + q_steps * kPanel * 4L);
  char* panel = (char*)(scores + (long)keys * kPanel);
  float* sums = (float*)(panel + v_steps * kPanel * 4L);
  transpose_values(h.v, h.ld, h.n, h.width, v_steps, values);
  for (int first = 0; first < h.queries; first += kPanel) {
    const int here = h.queries - first < kPanel ? h.queries - first : kPanel;
    const int wanted = (here + kLanes - 1) / kLanes;
    pack_queries(h.q + first * h.ld, h.ld, here, h.width, queries);
    for (int i = 0; i < keys; i += at_once)
      multiply<BF16>(kPanelNr, h.k + i * h.ld, h.ld, queries, q_steps, scores + i * kPanel, kPanel, wanted);
    f32x16 inverse[kPanelNr];
    for (int j = 0; j < wanted; j++) {
      const auto down = h.log_sizes ? softmax<true> : softmax<false>;
      inverse[j] = down(scores + j * kLanes, h.log_sizes, h.n, v_steps, panel + j * 64);
    }
    for (int d = 0; d < width; d += at_once)
      multiply<BF16>(kPanelNr, values + d * ld_v, ld_v, panel, v_steps, sums + d * kPanel, kPanel, wanted);
    for (int j = 0; j < wanted; j++) {
      const int left = here - j * kLanes;
      for (int d = 0; d < h.width; d += kLanes) {
        u32x16 rows[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) {
          f32x16 v = load<f32x16>(sums + (d + i) * kPanel + j * kLanes) * inverse[j];
          if constexpr (TO == kU8) v = fma(v, all(scale[d + i]), all(bias[d + i]));
          rows[i] = (u32x16)v;
        }
        transpose(rows);
        char* to = out + (first + j * kLanes) * ld_out + d * (TO == kU8 ? 1 : 2);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) {
          if (i >= left) break;
          if constexpr (TO == kU8) store(to + i * ld_out, to_u8((f32x16)rows[i]));
          else store(to + i * ld_out, to_bf16((f32x16)rows[i]));
        }
      }
    }
  }
}

// The qkv rows are (tokens, 3, heads, width) bfloat16, q already multiplied by log2(e) / sqrt(width).
static void run_attention(const Program& p, const Step& s, const char* base, char* arena) {
  const Buffer &in = p.buffers[s.first_buffer], &out = p.buffers[s.first_buffer + 1];
  const float* scale = (const float*)(base + s.scale);
  const float* bias = (const float*)(base + s.bias);
  const long step = 2L * s.heads * s.width;
  float* log_sizes = (float*)(arena + s.scratch);
  char* scratch = arena + s.scratch + (s.weighted ? 4L * up_to(s.rows, kLanes) : 0);
  if (s.weighted) {
    const Buffer& sizes = p.buffers[s.first_buffer + 2];
    for (int i = 0; i < s.rows; i++)
      log_sizes[i] = __builtin_log2f(*(const float*)(arena + sizes.offset + i * sizes.row_bytes));
  }
  for (int h = 0; h < s.heads; h++) {
    const char* q = arena + in.offset + 2L * h * s.width;
    const Head one{q, q + step, q + 2 * step, s.weighted ? log_sizes : nullptr, (long)in.row_bytes, s.rows, s.queries, s.width};
    char* to = arena + out.offset + (s.to_type == kU8 ? 1L : 2L) * h * s.width;
    if (s.to_type == kU8) head<kU8>(one, to, out.row_bytes, scale + h * s.width, bias + h * s.width, scratch);
    else head<kBF16>(one, to, out.row_bytes, scale, bias, scratch);
  }
}

}  // namespace ISA
}  // namespace milkweed
