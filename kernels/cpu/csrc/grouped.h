// Branches of convolutions in groups: a lane is a group, so that groups of few channels leave none idle. Sixteen groups go
// through all convolutions before the next sixteen do, in the core's own cache. In float32 a lane holds one channel of its
// group, in 8 bits four.
#pragma once

#include "grid.h"

namespace milkweed {
namespace ISA {

constexpr int kPlaces = 2, kOutputs = 4;  // what shares its weights, and its inputs, in registers
constexpr int kVector = 4 * kLanes;       // bytes of sixteen groups

typedef int32_t native_ints __attribute__((vector_size(4 * kNative)));

// Where a place lies in a grid of sixteen groups, (side + edges, pitch, vectors of a place, kVector bytes), with edges.
struct Square {
  int side, edge, pitch;
  long at(int y, int x, int vectors) const { return ((long)(y + edge) * pitch + x + edge) * vectors * kVector; }
  long places() const { return (long)(side + 2 * edge) * pitch; }
};

// How a lane adds products: of one channel in float32, whose bias comes first.
struct OneFloat {
  typedef native Sum;
  static Sum start(const float* bias) { return load<native>(bias); }
  static Sum add(Sum sum, Sum x, Sum w) { return fused(x, w, sum); }
};

// Of four channels in 8 bits, the inputs without a sign.
struct FourBytes {
  typedef native_ints Sum;
  static Sum start(const float*) { return Sum{}; }
  static Sum add(Sum sum, Sum x, Sum w) {
#if defined(__AVX512VNNI__)
    return (Sum)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w);
#elif defined(__AVXVNNI__)
    return (Sum)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)w);
#elif defined(__AVX2__)
    // Sums of two fit 16 bits, since weights have 7 there.
    return sum + (Sum)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)x, (__m256i)w), _mm256_set1_epi16(1));
#else
    const uint8_t* inputs = (const uint8_t*)&x;
    const int8_t* weights = (const int8_t*)&w;
    for (int i = 0; i < 4 * kNative; i++) sum[i / 4] += inputs[i] * weights[i];
    return sum;
#endif
  }
};

// Sums of up to two places from `in` on and N outputs from `output` on, (2, outputs, 16).
template <class T, int N>
static inline void convolve(const Stage& s, const Square& q, const char* w, const float* bias, const char* in, int output,
                            char* sums) {
  typedef typename T::Sum Sum;
  for (int half = 0; half < kVector; half += sizeof(Sum)) {
    Sum sum[kPlaces][N];
#pragma GCC unroll 2
    for (int p = 0; p < kPlaces; p++)
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) sum[p][j] = T::start(bias + (output + j) * kLanes + half / 4);
    const char* weight = w + (long)output * kVector + half;
    for (int y = 0; y < s.kernel; y++) {
      const char* x = in + (long)y * q.pitch * s.inputs * kVector + half;
      for (int i = 0; i < s.kernel * s.inputs; i++, x += kVector, weight += (long)s.outputs * kVector) {
        Sum ws[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) ws[j] = load<Sum>(weight + j * kVector);
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) asm("" : "+v"(ws[j]));  // or gcc reads it again for each place
#pragma GCC unroll 2
        for (int p = 0; p < kPlaces; p++) {
          const Sum v = load<Sum>(x + (long)p * s.inputs * kVector);
#pragma GCC unroll 4
          for (int j = 0; j < N; j++) sum[p][j] = T::add(sum[p][j], v, ws[j]);
        }
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPlaces; p++)
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) store(sums + ((long)p * s.outputs + output + j) * kVector + half, sum[p][j]);
  }
}

// One convolution of sixteen groups. `finish(y, x, sums)` takes the sums of all outputs of a place, vector by vector;
// there is room for those of two.
template <class T, class Finish>
static inline void convolve(const Stage& s, const char* base, int block, const Square& q, const char* in, char* sums,
                            const Finish& finish) {
  const char* w = base + s.weights + (long)block * s.kernel * s.kernel * s.inputs * s.outputs * kVector;
  const float* bias = (const float*)(base + s.bias) + (long)block * s.outputs * kLanes;
  const int reach = s.kernel / 2;
  for (int y = 0; y < q.side; y++)
    for (int x = 0; x < q.side; x += kPlaces) {
      const char* from = in + q.at(y - reach, x - reach, s.inputs);
      int output = 0;
      for (; output + kOutputs <= s.outputs; output += kOutputs) convolve<T, kOutputs>(s, q, w, bias, from, output, sums);
      for (; output < s.outputs; output++) convolve<T, 1>(s, q, w, bias, from, output, sums);
      for (int p = 0; p < kPlaces && x + p < q.side; p++) finish(y, x + p, sums + (long)p * s.outputs * kVector);
    }
}

static inline bool curved(const Stage& s) { return s.epilogue == kSilu || s.epilogue == kSiluAdd; }

// In float32: adds a branch to the stream that it reads, buffer 0. `places` of its first and last stage are the columns of
// each sixteen groups, by channel of a group.
static void run_grouped_floats(const Program& p, const Step& s, const char* base, char* arena) {
  const Buffer& stream = p.buffers[s.first_buffer];
  const Stage *first = p.stages + s.first_stage, *last = first + s.stages - 1;
  const Square q{s.side, s.prefix, s.side + 2 * s.prefix + kPlaces};
  const long room = q.places() * s.channels * kVector;
  char *scratch = arena + s.scratch, *grids[2] = {scratch, scratch + room}, *sums = scratch + 2 * room;
  char* rows = arena + stream.offset;
  for (int block = 0; block < s.heads; block++) {
    const int lanes = s.features - block * kLanes < kLanes ? s.features - block * kLanes : kLanes;
    const int32_t* from = (const int32_t*)(base + first->places) + (long)block * first->inputs * kLanes;
    const int32_t* to = (const int32_t*)(base + last->places) + (long)block * last->outputs * kLanes;
    for (int i = 0, channels = first->inputs; i < 2; i++, channels = first->outputs)
      memset(grids[i], 0, q.places() * channels * kVector);
    for (int y = 0; y < q.side; y++)
      for (int x = 0; x < q.side; x++) {
        const float* row = (const float*)(rows + ((long)y * q.side + x) * stream.row_bytes);
        float* at = (float*)(grids[0] + q.at(y, x, first->inputs));
        for (int i = 0; i < first->inputs; i++)
          for (int lane = 0; lane < lanes; lane++) at[i * kLanes + lane] = row[from[i * kLanes + lane]];
      }
    int now = 0;
    for (const Stage* each = first; each <= last; each++, now ^= 1) {
      char* out = grids[now ^ 1];
      // What lay there before had other places.
      if (each != first) memset(out, 0, q.places() * each->outputs * kVector);
      convolve<OneFloat>(*each, base, block, q, grids[now], sums, [&](int y, int x, const char* found) {
        char* at = out + q.at(y, x, each->outputs);
        for (int i = 0; i < each->outputs; i++) {
          const f32x16 v = load<f32x16>(found + i * kVector);
          store(at + i * kVector, curved(*each) ? silu(v) : v);
        }
      });
    }
    for (int y = 0; y < q.side; y++)
      for (int x = 0; x < q.side; x++) {
        float* row = (float*)(rows + ((long)y * q.side + x) * stream.row_bytes);
        const float* at = (const float*)(grids[now] + q.at(y, x, last->outputs));
        for (int i = 0; i < last->outputs; i++)
          for (int lane = 0; lane < lanes; lane++) row[to[i * kLanes + lane]] += at[i * kLanes + lane];
      }
  }
}

// Of two registers the first halves, or the second ones, lane by lane in turns.
template <int HALF>
static inline native_bits in_turns(native_bits a, native_bits b) {
  native_bits from{};
  for (int j = 0; j < kNative; j++) from[j] = (HALF * kNative + j) / 2 + j % 2 * kNative;
  return __builtin_shuffle(a, b, from);
}

// Four channels of sixteen groups, (4, 16), as (16, 4).
static inline void by_group(const float* in, float* out) {
  for (int half = 0; half < kLanes; half += kNative, out += 4 * kNative) {
    native_bits v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) v[j] = load<native_bits>(in + j * kLanes + half);
    const native_bits even = in_turns<0>(v[0], v[2]), odd = in_turns<0>(v[1], v[3]);
    const native_bits even2 = in_turns<1>(v[0], v[2]), odd2 = in_turns<1>(v[1], v[3]);
    store(out, in_turns<0>(even, odd));
    store(out + kNative, in_turns<1>(even, odd));
    store(out + 2 * kNative, in_turns<0>(even2, odd2));
    store(out + 3 * kNative, in_turns<1>(even2, odd2));
  }
}

// Four numbers a lane, in 8 bits: the nearest, at least 0 and at most 255.
static inline u32x16 four_bytes(const f32x16 (&v)[4]) {
  u32x16 bytes{};
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) bytes = bytes | (u32x16)rounded(smaller(larger(v[j], all(0)), all(255))) << 8 * j;
  return bytes;
}

// A grid in which every place is one of those outside.
static void fill(char* grid, const Square& q, const Stage& reader, const char* base, int block) {
  const int bytes = reader.inputs * kVector;
  const char* outside = base + reader.outside + (long)block * bytes;
  for (long i = 0; i < q.places(); i++, grid += bytes) memcpy(grid, outside, bytes);
}

// In 8 bits: from the grid, buffer 1, to the stream, buffer 0, to which the last stage adds. `places` of that are its
// columns by output, group and the lowest two bits of an output.
static void run_grouped_bytes(const Program& p, const Step& s, const char* base, char* arena) {
  const Buffer &stream = p.buffers[s.first_buffer], &given = p.buffers[s.first_buffer + 1];
  const Stage *first = p.stages + s.first_stage, *last = first + s.stages - 1;
  const Square q{s.side, s.prefix, s.side + 2 * s.prefix + kPlaces};
  const long room = q.places() * s.channels * kVector, bytes = first->inputs * kVector;
  char *scratch = arena + s.scratch, *grids[2] = {scratch, scratch + room}, *sums = scratch + 2 * room;
  for (int block = 0; block < s.heads; block++) {
    const char* rows = arena + given.offset + block * bytes;
    fill(grids[0], q, *first, base, block);
    for (int y = 0; y < q.side; y++)
      for (int x = 0; x < q.side; x++, rows += given.row_bytes) memcpy(grids[0] + q.at(y, x, first->inputs), rows, bytes);
    int now = 0;
    for (const Stage* each = first; each <= last; each++, now ^= 1) {
      char* out = grids[now ^ 1];
      const int vectors = each->outputs / 4, group = each->group;
      const long constants = (long)block * each->outputs * kLanes;
      const float *scale = (const float*)(base + each->scale) + constants, *bias = (const float*)(base + each->bias) + constants;
      const float *scale2 = (const float*)(base + each->scale2) + constants, *bias2 = (const float*)(base + each->bias2) + constants;
      const int32_t* places = (const int32_t*)(base + each->places) + constants / group;
      if (each != last) fill(out, q, each[1], base, block);
      convolve<FourBytes>(*each, base, block, q, grids[now], sums, [&](int y, int x, const char* found) {
        char* row = arena + stream.offset + ((long)y * q.side + x) * stream.row_bytes;
        for (int i = 0; i < vectors; i++) {
          f32x16 v[4];
#pragma GCC unroll 4
          for (int j = 0; j < 4; j++) {
            const int c = (4 * i + j) * kLanes;
            v[j] = fma(to_f32(load<i32x16>(found + 4 * c)), load<f32x16>(scale + c), load<f32x16>(bias + c));
            if (curved(*each)) v[j] = silu(v[j]);
            if (each != last) v[j] = fma(v[j], load<f32x16>(scale2 + c), load<f32x16>(bias2 + c));
          }
          if (each != last) {
            store(out + q.at(y, x, vectors) + i * kVector, four_bytes(v));
            continue;
          }
          float here[4 * kLanes], sorted[4 * kLanes];
#pragma GCC unroll 4
          for (int j = 0; j < 4; j++) store(here + j * kLanes, v[j]);
          by_group(here, sorted);
          for (int j = 0; j < 4 * kLanes; j += kLanes)
            add(row, places + (4 * i * kLanes + j) / group, group, load<f32x16>(sorted + j));
        }
      });
    }
  }
}

static void run_grouped(const Program& p, const Step& s, const char* base, char* arena) {
  if (p.stages[s.first_stage].type == kU8) run_grouped_bytes(p, s, base, arena);
  else run_grouped_floats(p, s, base, arena);
}

}  // namespace ISA
}  // namespace milkweed
