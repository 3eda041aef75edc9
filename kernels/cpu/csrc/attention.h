// Attention over few tokens, queries in the lanes: the scores of all keys for a panel of queries, the softmax down the keys,
// and the weighted sum of values. Nothing larger than a panel is stored, and there is no reduction across lanes.
#pragma once

#include "grid.h"

namespace milkweed {
namespace ISA {

constexpr int kQueryNr = 2, kQueries = kLanes * kQueryNr;  // of a panel

// AVX2 has no bfloat16 products, and float32's take twice as long as int16's. So there queries, keys and values are int16,
// with a scale each for a head of an image, and so are probabilities: finer than bfloat16's 8 bits.
#if defined(MILKWEED_AVX2_PAIRS)
typedef I16 QkvType;
#else
typedef BF16 QkvType;
#endif
constexpr int kMaxI16Tokens = 512;  // with more, 32-bit sums leave the probabilities too few of int16's bits
constexpr float kMaxSum = 2.147e9f, kMaxProbability = 32700;  // 2^31 and 2^15 less the error of exponentials
constexpr float kMaxValue = 2047;

// Quantisation scales, 1 for bfloat16: what floats are multiplied by to be int16, and sums of products to be floats again.
struct Scales {
  float query = 1, key = 1, value = 1, probability = 1, score = 1, output = 1;
};

static inline int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// A step of a transposition, on two rows whose numbers differ in the bit STEP: swaps the elements whose row or column alone
// has that bit.
template <int STEP, int... J>
static inline void transpose_step(native_u32& a, native_u32& b, std::integer_sequence<int, J...>) {
  const native_u32 first = a;
  a = MILKWEED_SHUFFLE(first, b, (J & STEP ? kNativeLanes + (J ^ STEP) : J)...);
  b = MILKWEED_SHUFFLE(first, b, (J & STEP ? kNativeLanes + J : J | STEP)...);
}

template <int STEP>
static inline void transpose_block(native_u32 (&block)[kNativeLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kNativeLanes; i++)
    if (!(i & STEP)) transpose_step<STEP>(block[i], block[i | STEP], NativeIndices());
  if constexpr (2 * STEP < kNativeLanes) transpose_block<2 * STEP>(block);
}

// Transposes 16 x 16, in blocks as wide as a register.
static inline void transpose(u32x16 (&rows)[kLanes]) {
  constexpr int parts = kLanes / kNativeLanes, bytes = sizeof(native_u32);
  native_u32 blocks[parts][parts][kNativeLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i++)
#pragma GCC unroll 4
    for (int j = 0; j < parts; j++)
      blocks[i / kNativeLanes][j][i % kNativeLanes] = load<native_u32>((const char*)&rows[i] + j * bytes);
#pragma GCC unroll 16
  for (int i = 0; i < parts * parts; i++) transpose_block<1>(blocks[i / parts][i % parts]);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i++)
#pragma GCC unroll 4
    for (int j = 0; j < parts; j++) store((char*)&rows[i] + j * bytes, blocks[j][i / kNativeLanes][i % kNativeLanes]);
}

// The largest magnitude of rows (n, width) bfloat16, at least 1e-30.
static float abs_max(const char* x, long ld, int n, int width) {
  const u32x16 magnitude = u32x16{} + 0x7fff0000u;
  f32x16 largest = set1(1e-30f);
  for (int i = 0; i < n; i++, x += ld)
    for (int d = 0; d < width; d += kLanes)
      largest = max(largest, (f32x16)(zero_extend(load<u16x16>(x + 2 * d)) << 16 & magnitude));
  return reduce_max(largest);
}

// Pairs of bfloat16 as pairs of T; int16 are scaled.
template <class T>
static inline u32x16 convert_pairs(u32x16 pairs, float scale) {
  if constexpr (!kIsInteger<T>) return pairs;
  const f32x16 even = (f32x16)(pairs << 16), odd = (f32x16)(pairs & (u32x16{} + 0xffff0000u));
  return ((u32x16)round_to_i32(even * scale) & (u32x16{} + 0xffffu)) | (u32x16)round_to_i32(odd * scale) << 16;
}

// Packs queries (count, width) bfloat16 into a panel: [width / 2][kQueries][2].
template <class T>
static void pack_queries(const char* q, long ld, int count, int width, float scale, char* out) {
  const int steps = width / 2, padded = round_up(steps, kStepMultiple);
  for (int first = 0; first < kQueries; first += kLanes) {
    for (int k = 0; k < padded; k += kLanes) {
      u32x16 rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++)
        rows[i] = first + i < count ? convert_pairs<T>(load<u32x16>(q + (first + i) * ld + 4 * k), scale) : u32x16{};
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++)
        if (k + i < padded) store(out + ((k + i) * kQueries + first) * 4, k + i < steps ? rows[i] : u32x16{});
    }
  }
}

// Values (n, width) bfloat16 -> (width, 2 steps), zero past n.
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
        rows[i] = convert_pairs<T>(zero_extend(even) | zero_extend(odd) << 16, scale);
      }
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i++) store(out + ((long)(d + i) * round_up(steps, kLanes) + j) * 4, rows[i]);
    }
  }
}

// What is added to scores: logarithms of the sizes of merged tokens, or biases of pairs.
enum Summand { kNothing, kLogSizes, kPairs };

// Softmax of 16 queries down n scores in base 2: pairs of keys as T into a panel of `steps` k-steps, not yet divided by
// their sum. Returns the inverse of the sum. A key that stands for several patches counts that many times.
template <class T, Summand SUMMAND>
static inline f32x16 softmax(const float* scores, const float* log_sizes, const uint16_t* pairs, int n, int steps,
                             const Scales& scales, char* panel) {
  const auto at = [&](int i) {
    f32x16 score = load_as_f32<T>(scores + i * kQueries);
    if constexpr (kIsInteger<T>) score = score * scales.score;
    if constexpr (SUMMAND == kLogSizes) score = score + set1(log_sizes[i]);
    if constexpr (SUMMAND == kPairs) score = score + (f32x16)(zero_extend(load<u16x16>(pairs + i * kQueries)) << 16);
    return score;
  };
  f32x16 peak = at(0), peak2 = peak;
  int i = 1;
  for (; i + 1 < n; i += 2) {
    peak = max(peak, at(i));
    peak2 = max(peak2, at(i + 1));
  }
  for (; i < n; i++) peak = max(peak, at(i));
  peak = max(peak, peak2);
  f32x16 even_sum{}, odd_sum{};
  int k = 0;
  for (; 2 * k < n; k++) {
    const f32x16 even = exp2_of_negative(at(2 * k) - peak);
    f32x16 odd{};
    if (2 * k + 1 < n) odd = exp2_of_negative(at(2 * k + 1) - peak);
    even_sum += even;
    odd_sum += odd;
    u32x16 pair;
    if constexpr (kIsInteger<T>)
      pair = (u32x16)round_to_i32(even * scales.probability) | (u32x16)round_to_i32(odd * scales.probability) << 16;
    else
      pair = ((u32x16)even + 0x8000) >> 16 | (((u32x16)odd + 0x8000) & 0xffff0000u);
    store(panel + k * kQueries * 4, pair);
  }
  for (; k < steps; k++) store(panel + k * kQueries * 4, u32x16{});
  return 1 / (even_sum + odd_sum);
}

template <int TYPE>
constexpr int kItemBytes = TYPE == kU8 ? 1 : TYPE == kBF16 ? 2 : 4;

struct Head {
  const char *q, *k, *v;
  const float* log_sizes;
  const uint16_t* pairs;
  long ld;
  int n, queries, width;
};

// All keys as rows of T. What is written past a row, the next row overwrites.
template <class T>
static const char* convert_keys(const Head& h, float scale, char* out) {
  for (int i = 0; i < h.n; i++)
    for (int d = 0; d < h.width; d += 2 * kLanes)
      store(out + 2L * (i * h.width + d), convert_pairs<T>(load<u32x16>(h.k + i * h.ld + 2 * d), scale));
  return out;
}

// Scales such that sums of `width` products, and of n, always fit 32 bits.
template <class T>
static Scales int16_scales(const Head& h) {
  Scales scales;
  if constexpr (kIsInteger<T>) {
    const float limit = (int)__builtin_sqrtf(kMaxSum / h.width);
    scales.query = limit / abs_max(h.q, h.ld, h.queries, h.width);
    scales.key = limit / abs_max(h.k, h.ld, h.n, h.width);
    scales.value = kMaxValue / abs_max(h.v, h.ld, h.n, h.width);
    scales.probability = __builtin_fminf(kMaxSum / (kMaxValue * h.n), kMaxProbability);
    scales.score = 1 / (scales.query * scales.key);
    scales.output = 1 / (scales.value * scales.probability);
  }
  return scales;
}

// Queries `begin` to `end` of one head of one image; `scratch` holds transposed values, packed queries, scores, probabilities,
// sums and keys.
template <class T, int TO>
static void run_head(const Head& h, int begin, int end, char* out, long ld_out, const float* scale, const float* bias, char* scratch) {
  const int mr = microkernel_rows(kQueryNr), keys = round_up(h.n, mr), width = round_up(h.width, mr);
  const int q_steps = round_up(h.width / 2, kStepMultiple), v_steps = round_up((h.n + 1) / 2, kStepMultiple);
  const long ld_v = 4L * round_up(v_steps, kLanes), ld_k = kIsInteger<T> ? 2L * h.width : h.ld;
  const Scales scales = int16_scales<T>(h);
  char* values = scratch;
  char* queries = values + width * ld_v;
  float* scores = (float*)(queries + q_steps * kQueries * 4L);
  char* panel = (char*)(scores + (long)keys * kQueries);
  float* sums = (float*)(panel + v_steps * kQueries * 4L);
  const char* k = h.k;
  if constexpr (kIsInteger<T>) k = convert_keys<T>(h, scales.key, (char*)(sums + width * kQueries));
  transpose_values<T>(h.v, h.ld, h.n, h.width, v_steps, scales.value, values);
  for (int first = begin; first < end; first += kQueries) {
    const int count = end - first < kQueries ? end - first : kQueries;
    const int nr_used = (count + kLanes - 1) / kLanes;
    pack_queries<T>(h.q + first * h.ld, h.ld, count, h.width, scales.query, queries);
    for (int i = 0; i < keys; i += mr)
      gemm<T>(kQueryNr, k + i * ld_k, ld_k, queries, q_steps, {}, scores + i * kQueries, kQueries, nr_used);
    f32x16 inverse_sum[kQueryNr];
    for (int j = 0; j < nr_used; j++) {
      const auto softmax_of = h.log_sizes ? softmax<T, kLogSizes> : h.pairs ? softmax<T, kPairs> : softmax<T, kNothing>;
      const uint16_t* pairs = h.pairs ? h.pairs + (long)first * h.n + j * kLanes : nullptr;
      inverse_sum[j] =
          softmax_of(scores + j * kLanes, h.log_sizes, pairs, h.n, v_steps, scales, panel + j * 64) * scales.output;
    }
    for (int d = 0; d < width; d += mr)
      gemm<T>(kQueryNr, values + d * ld_v, ld_v, panel, v_steps, {}, sums + d * kQueries, kQueries, nr_used);
    for (int j = 0; j < nr_used; j++) {
      const int remaining = count - j * kLanes;
      for (int d = 0; d < h.width; d += kLanes) {
        u32x16 rows[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) {
          f32x16 v = load_as_f32<T>(sums + (d + i) * kQueries + j * kLanes) * inverse_sum[j];
          if constexpr (TO == kU8) v = fma(v, set1(scale[d + i]), set1(bias[d + i]));
          rows[i] = (u32x16)v;
        }
        transpose(rows);
        char* to = out + (first + j * kLanes) * ld_out + d * kItemBytes<TO>;
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) {
          if (i >= remaining) break;
          if constexpr (TO == kF32) store(to + i * ld_out, rows[i]);
          else if constexpr (TO == kU8) store(to + i * ld_out, to_u8((f32x16)rows[i]));
          else store(to + i * ld_out, to_bf16((f32x16)rows[i]));
        }
      }
    }
  }
}

template <class T>
static auto run_head_as(int to_type) {
  return to_type == kU8 ? run_head<T, kU8> : to_type == kF32 ? run_head<T, kF32> : run_head<T, kBF16>;
}

// Rows of qkv are (tokens, 3, heads, width) bfloat16, q already multiplied by log2(e) / sqrt(width).
static void run_attention(const Program& p, const Step& s, const char* base, char* arena, const Member& member) {
  const Buffer &in = p.buffers[s.first_buffer], &out = p.buffers[s.first_buffer + 1];
  const float* scale = (const float*)(base + s.scale);
  const float* bias = (const float*)(base + s.bias);
  const long step = 2L * s.heads * s.width;
  float* log_sizes = (float*)(member.memory + s.scratch);
  char* scratch = member.memory + s.scratch + (s.weighted ? 4L * round_up(s.rows, kLanes) : 0);
  if (s.weighted) {
    const Buffer& sizes = p.buffers[s.first_buffer + 2];
    for (int i = 0; i < s.rows; i++)
      log_sizes[i] = __builtin_log2f(*(const float*)(arena + sizes.offset + i * sizes.row_bytes));
  }
  // Panels of queries are shared out, so that few heads busy many threads.
  const int panels = (s.queries + kQueries - 1) / kQueries;
  const Member::Share mine = member.share(s.windows * s.heads * panels);
  for (int panel = mine.first; panel < mine.last;) {
    const int item = panel / panels, begin = panel % panels, end = mine.last - item * panels;
    const int window = item / s.heads, h = item % s.heads;
    panel = (item + 1) * panels;
    const char* q = arena + in.offset + (long)window * s.rows * in.row_bytes + 2L * h * s.width;
    const long kind = s.biased ? ((const int32_t*)(base + s.kinds))[window] : 0;
    const uint16_t* pairs = (const uint16_t*)(base + s.pairs) + (kind * s.heads + h) * panels * s.rows * kQueries;
    const Head head{q, q + step, q + 2 * step, s.weighted ? log_sizes : nullptr, s.biased ? pairs : nullptr, (long)in.row_bytes,
                    s.rows, s.queries, s.width};
    const long item_bytes = s.to_type == kU8 ? 1 : s.to_type == kBF16 ? 2 : 4;
    char* to = arena + out.offset + (long)window * s.rows * out.row_bytes + item_bytes * h * s.width;
    const long column = s.to_type == kU8 ? h * s.width : 0;
    const auto run = s.rows > kMaxI16Tokens ? run_head_as<BF16>(s.to_type) : run_head_as<QkvType>(s.to_type);
    const int last = end < panels ? end * kQueries : s.queries;
    run(head, begin * kQueries, last, to, out.row_bytes, scale + column, bias + column, scratch);
  }
}

}  // namespace ISA
}  // namespace milkweed
