// Attention over few tokens, queries in the lanes: the scores of all keys for a panel of queries, their softmax down the
// keys, and the sum of values. Nothing larger than a panel exists, and no lane ever has to be added to another.
#pragma once

#include "grid.h"

namespace milkweed {
namespace ISA {

constexpr int kPanelNr = 2, kPanel = kLanes * kPanelNr;

// AVX2 has no products of bfloat16, and those of float32 take twice as long as of int16. So queries, keys and values are
// int16 there, with a scale each for a head of an image, and probabilities too: finer than bfloat16's 8 bits.
#if defined(MILKWEED_HALVES)
typedef I16 Attended;
#else
typedef BF16 Attended;
#endif
constexpr int kMostTokens = 512;  // with more, sums of 32 bits leave the probabilities too few of int16's bits
constexpr float kMostSum = 2.147e9f, kMostProbability = 32700;  // below 2^31 and 2^15 by what exponentials are off
constexpr float kMostValue = 2047;

// What floats are multiplied by to be int16, and sums of their products to be scores and answers; 1 for bfloat16.
struct Rates {
  float query = 1, key = 1, value = 1, probability = 1, score = 1, answer = 1;
};

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

// The largest magnitude of rows (n, width) bfloat16, and no less than 1e-30.
static float largest_of(const char* x, long ld, int n, int width) {
  const u32x16 magnitude = u32x16{} + 0x7fff0000u;
  f32x16 found = all(1e-30f);
  for (int i = 0; i < n; i++, x += ld)
    for (int d = 0; d < width; d += kLanes)
      found = larger(found, (f32x16)(widened(load<u16x16>(x + 2 * d)) << 16 & magnitude));
  return largest(found);
}

// Pairs of bfloat16 as pairs of T, multiplied by `scale` where those are int16.
template <class T>
static inline u32x16 pairs_of(u32x16 pairs, float scale) {
  if constexpr (!kIsInteger<T>) return pairs;
  const f32x16 even = (f32x16)(pairs << 16), odd = (f32x16)(pairs & (u32x16{} + 0xffff0000u));
  return ((u32x16)rounded(even * scale) & (u32x16{} + 0xffffu)) | (u32x16)rounded(odd * scale) << 16;
}

// Queries (count, width) bfloat16 as a panel of the product: [width / 2][kPanel][2].
template <class T>
static void pack_queries(const char* q, long ld, int count, int width, float scale, char* out) {
  const int steps = width / 2, padded = up_to(steps, kSteps);
  for (int first = 0; first < kPanel; first += kLanes) {
    for (int k = 0; k < padded; k += kLanes) {
      u32x16 rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++)
        rows[i] = first + i < count ? pairs_of<T>(load<u32x16>(q + (first + i) * ld + 4 * k), scale) : u32x16{};
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++)
        if (k + i < padded) store(out + ((k + i) * kPanel + first) * 4, k + i < steps ? rows[i] : u32x16{});
    }
  }
}

// Values (n, width) bfloat16 -> (width, 2 steps), zeros behind n.
template <class T>
static void transpose_values(const char* v, long ld, int n, int width, int steps, float scale, char* out) {
  for (int j = 0; j < steps; j += kLanes) {
    for (int d = 0; d < width; d += kLanes) {
      u32x16 rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++) {
        const int key = 2 * (j + i);
        const char* at = v + key * ld + 2 * d;
        const u16x16 even = key < n ? load<u16x16>(at) : u16x16{}, odd = key + 1 < n ? load<u16x16>(at + ld) : u16x16{};
        rows[i] = pairs_of<T>(widened(even) | widened(odd) << 16, scale);
      }
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++) store(out + ((long)(d + i) * up_to(steps, kLanes) + j) * 4, rows[i]);
    }
  }
}

// Softmax down n scores, in units of log 2, of 16 queries: pairs of keys as T into a panel of `steps` k-steps, not yet
// divided by their sum. Returns the inverse of that. A key that stands for several patches counts as often.
template <class T, bool WEIGHTED>
static inline f32x16 softmax(const float* scores, const float* log_sizes, int n, int steps, const Rates& rates, char* panel) {
  const auto at = [&](int i) {
    f32x16 score = as_float<T>(scores + i * kPanel);
    if constexpr (kIsInteger<T>) score = score * rates.score;
    if constexpr (WEIGHTED) score = score + all(log_sizes[i]);
    return score;
  };
  f32x16 top = at(0), second = top;
  int i = 1;
  for (; i + 1 < n; i += 2) {
    top = larger(top, at(i));
    second = larger(second, at(i + 1));
  }
  for (; i < n; i++) top = larger(top, at(i));
  top = larger(top, second);
  f32x16 even_sum{}, odd_sum{};
  int k = 0;
  for (; 2 * k < n; k++) {
    const f32x16 even = exp2_of_negative(at(2 * k) - top);
    f32x16 odd{};
    if (2 * k + 1 < n) odd = exp2_of_negative(at(2 * k + 1) - top);
    even_sum += even;
    odd_sum += odd;
    u32x16 pair;
    if constexpr (kIsInteger<T>) pair = (u32x16)rounded(even * rates.probability) | (u32x16)rounded(odd * rates.probability) << 16;
    else pair = ((u32x16)even + 0x8000) >> 16 | (((u32x16)odd + 0x8000) & 0xffff0000u);
    store(panel + k * kPanel * 4, pair);
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

// All keys as rows of T. What is written behind a row the next one writes again.
template <class T>
static const char* convert_keys(const Head& h, float scale, char* out) {
  for (int i = 0; i < h.n; i++)
    for (int d = 0; d < h.width; d += 2 * kLanes)
      store(out + 2L * (i * h.width + d), pairs_of<T>(load<u32x16>(h.k + i * h.ld + 2 * d), scale));
  return out;
}

// Such that sums of `width` products, and of n, fit 32 bits whatever is multiplied.
template <class T>
static Rates rates_of(const Head& h) {
  Rates rates;
  if constexpr (kIsInteger<T>) {
    const float most = (int)__builtin_sqrtf(kMostSum / h.width);
    rates.query = most / largest_of(h.q, h.ld, h.queries, h.width);
    rates.key = most / largest_of(h.k, h.ld, h.n, h.width);
    rates.value = kMostValue / largest_of(h.v, h.ld, h.n, h.width);
    rates.probability = __builtin_fminf(kMostSum / (kMostValue * h.n), kMostProbability);
    rates.score = 1 / (rates.query * rates.key);
    rates.answer = 1 / (rates.value * rates.probability);
  }
  return rates;
}

// One head of one image; `scratch` holds transposed values, keys, packed queries, scores, probabilities and sums.
template <class T, int TO>
static void head(const Head& h, char* out, long ld_out, const float* scale, const float* bias, char* scratch) {
  const int at_once = rows_at_once(kPanelNr), keys = up_to(h.n, at_once), width = up_to(h.width, at_once);
  const int q_steps = up_to(h.width / 2, kSteps), v_steps = up_to((h.n + 1) / 2, kSteps);
  const long ld_v = 4L * up_to(v_steps, kLanes), ld_k = kIsInteger<T> ? 2L * h.width : h.ld;
  const Rates rates = rates_of<T>(h);
  char* values = scratch;
  char* queries = values + width * ld_v;
  float* scores = (float*)(queries + q_steps * kPanel * 4L);
  char* panel = (char*)(scores + (long)keys * kPanel);
  float* sums = (float*)(panel + v_steps * kPanel * 4L);
  const char* k = h.k;
  if constexpr (kIsInteger<T>) k = convert_keys<T>(h, rates.key, (char*)(sums + width * kPanel));
  transpose_values<T>(h.v, h.ld, h.n, h.width, v_steps, rates.value, values);
  for (int first = 0; first < h.queries; first += kPanel) {
    const int here = h.queries - first < kPanel ? h.queries - first : kPanel;
    const int wanted = (here + kLanes - 1) / kLanes;
    pack_queries<T>(h.q + first * h.ld, h.ld, here, h.width, rates.query, queries);
    for (int i = 0; i < keys; i += at_once)
      multiply<T>(kPanelNr, k + i * ld_k, ld_k, queries, q_steps, {}, scores + i * kPanel, kPanel, wanted);
    f32x16 inverse[kPanelNr];
    for (int j = 0; j < wanted; j++) {
      const auto down = h.log_sizes ? softmax<T, true> : softmax<T, false>;
      inverse[j] = down(scores + j * kLanes, h.log_sizes, h.n, v_steps, rates, panel + j * 64) * rates.answer;
    }
    for (int d = 0; d < width; d += at_once)
      multiply<T>(kPanelNr, values + d * ld_v, ld_v, panel, v_steps, {}, sums + d * kPanel, kPanel, wanted);
    for (int j = 0; j < wanted; j++) {
      const int left = here - j * kLanes;
      for (int d = 0; d < h.width; d += kLanes) {
        u32x16 rows[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) {
          f32x16 v = as_float<T>(sums + (d + i) * kPanel + j * kLanes) * inverse[j];
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

template <class T>
static auto head_of(int to_type) {
  return to_type == kU8 ? head<T, kU8> : head<T, kBF16>;
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
    const long place = s.to_type == kU8 ? h * s.width : 0;
    const auto run = s.rows > kMostTokens ? head_of<BF16>(s.to_type) : head_of<Attended>(s.to_type);
    run(one, to, out.row_bytes, scale + place, bias + place, scratch);
  }
}

}  // namespace ISA
}  // namespace milkweed
