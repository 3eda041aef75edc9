// Branches of grouped convolutions: a lane is a group, so that groups of few channels leave no lane idle. Sixteen groups go
// through all convolutions of the branch before the next sixteen do, in the core's own cache. In float32 a lane holds one
// channel of its group, in 8 bits four.
#pragma once

#include "grid.h"

namespace milkweed {
namespace ISA {

constexpr int kTilePixels = 2, kTileOutputs = 4;  // register tile: weights are shared by the pixels, inputs by the outputs
constexpr int kVectorBytes = 4 * kLanes;  // of sixteen groups

typedef int32_t native_i32 __attribute__((vector_size(4 * kNativeLanes)));

// A padded grid of sixteen groups: (side + 2 padding, pitch, vectors of a pixel, kVectorBytes).
struct PaddedGrid {
  int side, padding, pitch;
  long at(int y, int x, int vectors) const { return ((long)(y + padding) * pitch + x + padding) * vectors * kVectorBytes; }
  long pixels() const { return (long)(side + 2 * padding) * pitch; }
};

// How a lane accumulates: one float32 channel, from the bias on.
struct F32Lanes {
  typedef native_f32 Sum;
  static Sum start(const float* bias) { return load<native_f32>(bias); }
  static Sum add(Sum sum, Sum x, Sum w) { return fma(x, w, sum); }
};

// Four 8-bit channels, inputs unsigned, from zero on.
struct U8Lanes {
  typedef native_i32 Sum;
  static Sum start(const float*) { return Sum{}; }
  static Sum add(Sum sum, Sum x, Sum w) {
#if defined(__AVX512VNNI__)
    return (Sum)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w);
#elif defined(__AVXVNNI__)
    return (Sum)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)w);
#elif defined(__AVX2__)
    // Sums of two products fit 16 bits: weights have 7 bits there.
    return sum + (Sum)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)x, (__m256i)w), _mm256_set1_epi16(1));
#else
    const uint8_t* inputs = (const uint8_t*)&x;
    const int8_t* weights = (const int8_t*)&w;
    for (int i = 0; i < 4 * kNativeLanes; i++) sum[i / 4] += inputs[i] * weights[i];
    return sum;
#endif
  }
};

// The register tile: sums of kTilePixels pixels from `in` on and N outputs from `output` on, (kTilePixels, outputs, 16).
template <class T, int N>
static inline void convolve_tile(const Stage& s, const PaddedGrid& grid, const char* w, const float* bias, const char* in,
                                 int output, char* sums) {
  typedef typename T::Sum Sum;
  for (int half = 0; half < kVectorBytes; half += sizeof(Sum)) {
    Sum sum[kTilePixels][N];
#pragma GCC unroll 2
    for (int p = 0; p < kTilePixels; p++)
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) sum[p][j] = T::start(bias + (output + j) * kLanes + half / 4);
    const char* weight = w + (long)output * kVectorBytes + half;
    for (int y = 0; y < s.kernel; y++) {
      const char* x = in + (long)y * grid.pitch * s.inputs * kVectorBytes + half;
      for (int i = 0; i < s.kernel * s.inputs; i++, x += kVectorBytes, weight += (long)s.outputs * kVectorBytes) {
        Sum ws[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) ws[j] = load<Sum>(weight + j * kVectorBytes);
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) asm("" : "+v"(ws[j]));  // or gcc loads it again for each pixel
#pragma GCC unroll 2
        for (int p = 0; p < kTilePixels; p++) {
          const Sum v = load<Sum>(x + (long)p * s.inputs * kVectorBytes);
#pragma GCC unroll 4
          for (int j = 0; j < N; j++) sum[p][j] = T::add(sum[p][j], v, ws[j]);
        }
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < kTilePixels; p++)
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) store(sums + ((long)p * s.outputs + output + j) * kVectorBytes + half, sum[p][j]);
  }
}

// One convolution of sixteen groups. `epilogue(y, x, sums)` gets the sums of all outputs of a pixel, vector by vector; `sums`
// has room for kTilePixels pixels.
template <class T, class EpilogueOp>
static inline void convolve(const Stage& s, const char* base, int block, const PaddedGrid& grid, const char* in, char* sums,
                            const EpilogueOp& epilogue) {
  const char* w = base + s.weights + (long)block * s.kernel * s.kernel * s.inputs * s.outputs * kVectorBytes;
  const float* bias = (const float*)(base + s.bias) + (long)block * s.outputs * kLanes;
  const int radius = s.kernel / 2;
  for (int y = 0; y < grid.side; y++)
    for (int x = 0; x < grid.side; x += kTilePixels) {
      const char* from = in + grid.at(y - radius, x - radius, s.inputs);
      int output = 0;
      for (; output + kTileOutputs <= s.outputs; output += kTileOutputs)
        convolve_tile<T, kTileOutputs>(s, grid, w, bias, from, output, sums);
      for (; output < s.outputs; output++) convolve_tile<T, 1>(s, grid, w, bias, from, output, sums);
      for (int p = 0; p < kTilePixels && x + p < grid.side; p++) epilogue(y, x + p, sums + (long)p * s.outputs * kVectorBytes);
    }
}

static inline bool has_silu(const Stage& s) { return s.epilogue == kSilu || s.epilogue == kSiluAdd; }

// In float32: adds a branch to the stream that it reads, buffer 0. `out_columns` of the first and last stage are the columns
// of each sixteen groups in the stream, by channel of a group.
static void run_grouped_floats(const Program& p, const Step& s, const char* base, char* arena, const Member& member) {
  const Buffer& stream = p.buffers[s.first_buffer];
  const Stage *first = p.stages + s.first_stage, *last = first + s.stages - 1;
  const PaddedGrid grid{s.side, s.prefix, s.side + 2 * s.prefix + kTilePixels};
  const long room = grid.pixels() * s.channels * kVectorBytes;
  char *scratch = member.memory + s.scratch, *grids[2] = {scratch, scratch + room}, *sums = scratch + 2 * room;
  char* rows = arena + stream.offset;
  const Member::Share mine = member.share(s.heads);
  for (int block = mine.first; block < mine.last; block++) {
    const int lanes = s.features - block * kLanes < kLanes ? s.features - block * kLanes : kLanes;
    const int32_t* from = (const int32_t*)(base + first->out_columns) + (long)block * first->inputs * kLanes;
    const int32_t* to = (const int32_t*)(base + last->out_columns) + (long)block * last->outputs * kLanes;
    memset(grids[0], 0, grid.pixels() * first->inputs * kVectorBytes);
    for (int y = 0; y < s.side; y++)
      for (int x = 0; x < s.side; x++) {
        const float* row = (const float*)(rows + ((long)y * s.side + x) * stream.row_bytes);
        float* at = (float*)(grids[0] + grid.at(y, x, first->inputs));
        for (int i = 0; i < first->inputs; i++)
          for (int lane = 0; lane < lanes; lane++) at[i * kLanes + lane] = row[from[i * kLanes + lane]];
      }
    int current = 0;
    for (const Stage* stage = first; stage <= last; stage++, current ^= 1) {
      char* out = grids[current ^ 1];
      memset(out, 0, grid.pixels() * stage->outputs * kVectorBytes);
      convolve<F32Lanes>(*stage, base, block, grid, grids[current], sums, [&](int y, int x, const char* result) {
        char* at = out + grid.at(y, x, stage->outputs);
        for (int i = 0; i < stage->outputs; i++) {
          const f32x16 v = load<f32x16>(result + i * kVectorBytes);
          store(at + i * kVectorBytes, has_silu(*stage) ? silu(v) : v);
        }
      });
    }
    for (int y = 0; y < s.side; y++)
      for (int x = 0; x < s.side; x++) {
        float* row = (float*)(rows + ((long)y * s.side + x) * stream.row_bytes);
        const float* at = (const float*)(grids[current] + grid.at(y, x, last->outputs));
        for (int i = 0; i < last->outputs; i++)
          for (int lane = 0; lane < lanes; lane++) row[to[i * kLanes + lane]] += at[i * kLanes + lane];
      }
  }
}

// Interleaves the lower halves of two registers, or the upper ones, across the whole register: {a0, b0, a1, b1, ...}.
template <int HALF, int... J>
static inline native_u32 interleave(native_u32 a, native_u32 b, std::integer_sequence<int, J...>) {
  return MILKWEED_SHUFFLE(a, b, ((HALF * kNativeLanes + J) / 2 + J % 2 * kNativeLanes)...);
}

template <int HALF>
static inline native_u32 interleave(native_u32 a, native_u32 b) {
  return interleave<HALF>(a, b, NativeIndices());
}

// (4, 16), four channels of sixteen groups, as (16, 4).
static inline void transpose_4x16(const float* in, float* out) {
  for (int half = 0; half < kLanes; half += kNativeLanes, out += 4 * kNativeLanes) {
    native_u32 v[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) v[j] = load<native_u32>(in + j * kLanes + half);
    const native_u32 even = interleave<0>(v[0], v[2]), odd = interleave<0>(v[1], v[3]);
    const native_u32 even2 = interleave<1>(v[0], v[2]), odd2 = interleave<1>(v[1], v[3]);
    store(out, interleave<0>(even, odd));
    store(out + kNativeLanes, interleave<1>(even, odd));
    store(out + 2 * kNativeLanes, interleave<0>(even2, odd2));
    store(out + 3 * kNativeLanes, interleave<1>(even2, odd2));
  }
}

// Four numbers a lane as bytes: the nearest integers, saturated to 0 .. 255.
static inline u32x16 pack_u8(const f32x16 (&v)[4]) {
  u32x16 bytes{};
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) bytes = bytes | (u32x16)round_to_i32(min(max(v[j], set1(0)), set1(255))) << 8 * j;
  return bytes;
}

// Fills a grid with the padding values of the stage that reads it.
static void fill(char* to, const PaddedGrid& grid, const Stage& reader, const char* base, int block) {
  const int bytes = reader.inputs * kVectorBytes;
  const char* pad_values = base + reader.pad_values + (long)block * bytes;
  for (long i = 0; i < grid.pixels(); i++, to += bytes) memcpy(to, pad_values, bytes);
}

// In 8 bits: from a grid, buffer 1, to the stream, buffer 0, to which the last stage adds. `out_columns` of that are its
// columns by output, group and the lowest two bits of an output.
static void run_grouped_bytes(const Program& p, const Step& s, const char* base, char* arena, const Member& member) {
  const Buffer& stream = p.buffers[s.first_buffer];
  const Stage *first = p.stages + s.first_stage, *last = first + s.stages - 1;
  const PaddedGrid grid{s.side, s.prefix, s.side + 2 * s.prefix + kTilePixels};
  const long room = grid.pixels() * s.channels * kVectorBytes;
  char *scratch = member.memory + s.scratch, *grids[2] = {scratch, scratch + room}, *sums = scratch + 2 * room;
  const Buffer& input = p.buffers[s.first_buffer + 1];
  const long bytes = first->inputs * kVectorBytes;
  const Member::Share mine = member.share(s.heads);
  for (int block = mine.first; block < mine.last; block++) {
    const char* rows = arena + input.offset + block * bytes;
    fill(grids[0], grid, *first, base, block);
    for (int y = 0; y < s.side; y++)
      for (int x = 0; x < s.side; x++, rows += input.row_bytes)
        memcpy(grids[0] + grid.at(y, x, first->inputs), rows, bytes);
    int current = 0;
    for (const Stage* stage = first; stage <= last; stage++, current ^= 1) {
      char* out = grids[current ^ 1];
      const int vectors = stage->outputs / 4, group = stage->group;
      const long constants = (long)block * stage->outputs * kLanes;
      const auto floats = [&](int64_t offset) { return (const float*)(base + offset) + constants; };
      const float *scale = floats(stage->scale), *bias = floats(stage->bias);
      const float *scale2 = floats(stage->scale2), *bias2 = floats(stage->bias2);
      const int32_t* columns = (const int32_t*)(base + stage->out_columns) + constants / group;
      if (stage != last) fill(out, grid, stage[1], base, block);
      convolve<U8Lanes>(*stage, base, block, grid, grids[current], sums, [&](int y, int x, const char* result) {
        char* row = arena + stream.offset + ((long)y * s.side + x) * stream.row_bytes;
        for (int i = 0; i < vectors; i++) {
          f32x16 v[4];
#pragma GCC unroll 4
          for (int j = 0; j < 4; j++) {
            const int c = (4 * i + j) * kLanes;
            v[j] = fma(to_f32(load<i32x16>(result + 4 * c)), load<f32x16>(scale + c), load<f32x16>(bias + c));
            if (has_silu(*stage)) v[j] = silu(v[j]);
            if (stage != last) v[j] = fma(v[j], load<f32x16>(scale2 + c), load<f32x16>(bias2 + c));
          }
          if (stage != last) {
            store(out + grid.at(y, x, vectors) + i * kVectorBytes, pack_u8(v));
            continue;
          }
          float by_channel[4 * kLanes], by_group[4 * kLanes];
#pragma GCC unroll 4
          for (int j = 0; j < 4; j++) store(by_channel + j * kLanes, v[j]);
          transpose_4x16(by_channel, by_group);
          for (int j = 0; j < 4 * kLanes; j += kLanes)
            scatter_add(row, columns + (4 * i * kLanes + j) / group, group, load<f32x16>(by_group + j));
        }
      });
    }
  }
}

static void run_grouped(const Program& p, const Step& s, const char* base, char* arena, const Member& member) {
  if (p.stages[s.first_stage].type == kU8) run_grouped_bytes(p, s, base, arena, member);
  else run_grouped_floats(p, s, base, arena, member);
}

}  // namespace ISA
}  // namespace milkweed
