// Branches of convolutions in groups, in float32: a lane is a group, so that groups of few channels leave none idle. Sixteen
// groups go through all convolutions before the next sixteen do, in the core's own cache.
#pragma once

#include "grid.h"

namespace milkweed {
namespace ISA {

constexpr int kPlaces = 2, kOutputs = 4;  // what shares its weights, and its inputs, in registers

// Where a place lies in a grid of sixteen groups, (side + edges, pitch, channels of a group, 16), zeros around it.
struct Square {
  int side, edge, pitch;
  long at(int y, int x, int channels) const { return ((long)(y + edge) * pitch + x + edge) * channels * kLanes; }
  long places() const { return (long)(side + 2 * edge) * pitch; }
};

// Sums of up to two places from (y, x) on and N outputs from `output` on, (2, outputs, 16).
template <int N>
static inline void convolve(const Stage& s, const Square& q, const float* w, const float* bias, const float* in, int output,
                            float* sums) {
  for (int half = 0; half < kLanes; half += kNative) {
    native sum[kPlaces][N];
#pragma GCC unroll 2
    for (int p = 0; p < kPlaces; p++)
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) sum[p][j] = load<native>(bias + (output + j) * kLanes + half);
    const float* weight = w + (long)output * kLanes + half;
    for (int y = 0; y < s.kernel; y++) {
      const float* x = in + (long)y * q.pitch * s.inputs * kLanes + half;
      for (int i = 0; i < s.kernel * s.inputs; i++, x += kLanes, weight += (long)s.outputs * kLanes) {
        native ws[N];
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) ws[j] = load<native>(weight + j * kLanes);
#pragma GCC unroll 4
        for (int j = 0; j < N; j++) asm("" : "+v"(ws[j]));  // or gcc reads it again for each place
#pragma GCC unroll 2
        for (int p = 0; p < kPlaces; p++) {
          const native v = load<native>(x + (long)p * s.inputs * kLanes);
#pragma GCC unroll 4
          for (int j = 0; j < N; j++) sum[p][j] = fused(v, ws[j], sum[p][j]);
        }
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPlaces; p++)
#pragma GCC unroll 4
      for (int j = 0; j < N; j++) store(sums + ((long)p * s.outputs + output + j) * kLanes + half, sum[p][j]);
  }
}

// One convolution of sixteen groups. `sums` has room for two places.
static void convolve(const Stage& s, const char* base, int block, const Square& q, const float* in, float* out, float* sums) {
  const float* w = (const float*)(base + s.weights) + (long)block * s.kernel * s.kernel * s.inputs * s.outputs * kLanes;
  const float* bias = (const float*)(base + s.bias) + (long)block * s.outputs * kLanes;
  const int reach = s.kernel / 2;
  for (int y = 0; y < q.side; y++)
    for (int x = 0; x < q.side; x += kPlaces) {
      const float* from = in + q.at(y - reach, x - reach, s.inputs);
      int output = 0;
      for (; output + kOutputs <= s.outputs; output += kOutputs) convolve<kOutputs>(s, q, w, bias, from, output, sums);
      for (; output < s.outputs; output++) convolve<1>(s, q, w, bias, from, output, sums);
      const int here = q.side - x < kPlaces ? q.side - x : kPlaces;
      float* to = out + q.at(y, x, s.outputs);
      for (int i = 0; i < here * s.outputs; i++) {
        const f32x16 v = load<f32x16>(sums + i * kLanes);
        store(to + i * kLanes, s.epilogue == kSilu ? silu(v) : v);
      }
    }
}

// Adds a branch to the stream that it reads, buffer 0. `places` of its first and last stage are the columns of each
// sixteen groups, by channel of a group.
static void run_grouped(const Program& p, const Step& s, const char* base, char* arena) {
  const Buffer& stream = p.buffers[s.first_buffer];
  const Stage *first = p.stages + s.first_stage, *last = first + s.stages - 1;
  const Square q{s.side, s.prefix, s.side + 2 * s.prefix + kPlaces};
  const long room = q.places() * s.channels * kLanes;
  float *scratch = (float*)(arena + s.scratch), *grids[2] = {scratch, scratch + room}, *sums = scratch + 2 * room;
  char* rows = arena + stream.offset;
  for (int block = 0; block < s.heads; block++) {
    const int lanes = s.features - block * kLanes < kLanes ? s.features - block * kLanes : kLanes;
    const int32_t* from = (const int32_t*)(base + first->places) + (long)block * first->inputs * kLanes;
    const int32_t* to = (const int32_t*)(base + last->places) + (long)block * last->outputs * kLanes;
    for (int i = 0, channels = first->inputs; i < 2; i++, channels = first->outputs)
      memset(grids[i], 0, q.places() * channels * kLanes * 4);
    for (int y = 0; y < q.side; y++)
      for (int x = 0; x < q.side; x++) {
        const float* row = (const float*)(rows + ((long)y * q.side + x) * stream.row_bytes);
        float* at = grids[0] + q.at(y, x, first->inputs);
        for (int i = 0; i < first->inputs; i++)
          for (int lane = 0; lane < lanes; lane++) at[i * kLanes + lane] = row[from[i * kLanes + lane]];
      }
    int now = 0;
    for (const Stage* each = first; each <= last; each++, now ^= 1) {
      // What lay there before had other places.
      if (each != first) memset(grids[now ^ 1], 0, q.places() * each->outputs * kLanes * 4);
      convolve(*each, base, block, q, grids[now], grids[now ^ 1], sums);
    }
    for (int y = 0; y < q.side; y++)
      for (int x = 0; x < q.side; x++) {
        float* row = (float*)(rows + ((long)y * q.side + x) * stream.row_bytes);
        const float* at = grids[now] + q.at(y, x, last->outputs);
        for (int i = 0; i < last->outputs; i++)
          for (int lane = 0; lane < lanes; lane++) row[to[i * kLanes + lane]] += at[i * kLanes + lane];
      }
  }
}

}  // namespace ISA
}  // namespace milkweed
