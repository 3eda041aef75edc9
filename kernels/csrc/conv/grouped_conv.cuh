// A grouped 3x3 convolution with zero padding on tensor cores, over an image in shared memory.
//
// A group has too few channels for a matrix product per tap, but all nine taps together make one: 16 pixels x
// (9 taps * channels) x channels, the taps gathered from shared memory 8 bytes (4 channels of one pixel) at a time,
// the weights in registers for all pixels.
#pragma once
#include "primitives.cuh"

namespace mw::conv_branch {

constexpr int kPixels = 16;   // a warp's pixels at a time: the height of an mma
constexpr int kMaxSide = 32;  // of the image: see Grid's divisions

// The image in shared memory has a border of zeros: a row above and below, and one cell before each row, which also
// serves as the cell behind the previous row.
struct Grid {
  int side, pitch;
  int by_side, by_pitch;  // (n * by_d) >> 16 is n / d, exact where n * d < 65536
  MW_DEVICE explicit Grid(int side)
      : side(side), pitch(side + 1), by_side(65536 / side + 1), by_pitch(65536 / pitch + 1) {}
  MW_DEVICE int cells() const { return (side + 1) * (side + 2) + 1; }
  MW_DEVICE int pixels() const { return side * side; }
  MW_DEVICE int cell(int pixel) const {
    const int y = (pixel * by_side) >> 16;
    return (y + 1) * pitch + (pixel - y * side) + 1;
  }
  // Index of the pixel at a cell; -1 on the border.
  MW_DEVICE int pixel(int cell) const {
    const int row = (cell * by_pitch) >> 16, y = row - 1, x = cell - row * pitch - 1;
    return y >= 0 && y < side && x >= 0 ? y * side + x : -1;
  }
};

// Four channels of one pixel.
struct alignas(8) Quad {
  uint32_t low, high;
};

// A convolution's matrix product. Its inner index runs over quads: 9 taps, channels / 4 each; lane t of four takes
// quad 4 * step + t, as elements 2t, 2t+1, 2t+8, 2t+9 of an mma's inner 16.
template <int In, int Out>
struct Product {
  static constexpr int in = In, out = Out;
  static constexpr int tap_quads = in / 4, quads = 9 * tap_quads, steps = (quads + 3) / 4;
  static constexpr int blocks = (out + 7) / 8;  // of 8 output channels
  static constexpr int fragments = steps * blocks, loads = (fragments + 1) / 2;
};

// This lane's part of a group's weights, as right operands, and of its biases, with which the sums begin.
template <class P>
struct Weights {
  uint32_t fragment[P::loads][4];
  float bias[P::blocks][2];
};

template <class P>
MW_DEVICE void load_weights(Weights<P>& weights, const void* packed, const float* bias, int group) {
  const auto* mine = static_cast<const char*>(packed) + (static_cast<int64_t>(group) * P::loads * 32 + lane()) * 16;
  MW_UNROLL
  for (int i = 0; i < P::loads; i++) load_16(weights.fragment[i], mine + i * 32 * 16);
  MW_UNROLL
  for (int block = 0; block < P::blocks; block++) {
    MW_UNROLL
    for (int i = 0; i < 2; i++) {
      const int channel = block * 8 + 2 * (lane() % 4) + i;
      weights.bias[block][i] = channel < P::out ? bias[group * P::out + channel] : 0.0f;
    }
  }
}

// One group's convolution over the warp's pixels; `epilogue(cell, channel, low, high)` takes two adjacent channels.
template <class T, class P, class EpilogueOp>
MW_DEVICE void convolve(const T* from, int from_pixel, const Weights<P>& weights, const Grid& grid, int part,
                        int parts, EpilogueOp epilogue) {
  int offset[P::steps];
  MW_UNROLL
  for (int step = 0; step < P::steps; step++) {
    // Beyond the last quad the weights are zero; the last one is read again, so that no other pixel's NaN comes in.
    const int index = step * 4 + lane() % 4;
    const int quad = index < P::quads ? index : P::quads - 1;
    const int tap = quad / P::tap_quads, channel = (quad % P::tap_quads) * 4;
    offset[step] = ((tap / 3 - 1) * grid.pitch + tap % 3 - 1) * from_pixel + channel;
  }
  const int pixels = grid.pixels();
  for (int tile = part * kPixels; tile < pixels; tile += parts * kPixels) {
    int pixel[2], cell[2];
    const T* centre[2];
    MW_UNROLL
    for (int half = 0; half < 2; half++) {
      pixel[half] = tile + lane() / 4 + 8 * half;
      cell[half] = grid.cell(pixel[half] < pixels ? pixel[half] : pixels - 1);
      centre[half] = from + cell[half] * from_pixel;
    }
    float sum[P::blocks][4];
    MW_UNROLL
    for (int block = 0; block < P::blocks; block++) {
      MW_UNROLL
      for (int i = 0; i < 4; i++) sum[block][i] = weights.bias[block][i % 2];
    }
    MW_UNROLL
    for (int step = 0; step < P::steps; step++) {
      const auto first = *reinterpret_cast<const Quad*>(centre[0] + offset[step]);
      const auto second = *reinterpret_cast<const Quad*>(centre[1] + offset[step]);
      const uint32_t taps[4] = {first.low, second.low, first.high, second.high};
      MW_UNROLL
      for (int block = 0; block < P::blocks; block++) {
        const int fragment = step * P::blocks + block;
        const uint32_t* weight = &weights.fragment[fragment / 2][2 * (fragment % 2)];
        mma_16x8x16<T>(sum[block], taps, weight[0], weight[1]);
      }
    }
    MW_UNROLL
    for (int block = 0; block < P::blocks; block++) {
      const int channel = block * 8 + 2 * (lane() % 4);
      MW_UNROLL
      for (int half = 0; half < 2; half++)
        if (channel < P::out && pixel[half] < pixels)
          epilogue(cell[half], channel, sum[block][2 * half], sum[block][2 * half + 1]);
    }
  }
}

}  // namespace mw::conv_branch
