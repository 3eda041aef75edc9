// What a model compiles to: steps over buffers, as plain structures that Python fills in.
//
// `constants` is one read-only block: packed weights, scales, biases. `arena` is the memory of one caller. Both begin at
// a multiple of 64 bytes; every offset into them is in bytes.
#pragma once

#include <cstdint>

namespace milkweed {

enum Type : int32_t { kF32 = 0, kBF16 = 1, kU8 = 2 };
enum Action : int32_t { kNorm = 0, kFactor = 1, kCast = 2, kGather = 3 };
enum Epilogue : int32_t { kStore = 0, kGelu = 1, kAdd = 2, kSilu = 3, kSiluAdd = 4 };
enum StepKind : int32_t { kPatches = 0, kRows = 1, kAttention = 2, kMerge = 3, kPixels = 4, kPerformer = 5, kMean = 6, kGrouped = 7 };

// One action on a tile of rows: a LayerNorm, a cast, the gathering of a convolution's taps, or a factor: `blocks` products
// of `inputs` by `outputs`.
struct Stage {
  int32_t action, type;        // type: of the inputs of a factor, of the outputs of a norm or cast
  int32_t blocks, inputs, outputs, nr;  // inputs: of a gather the bytes of a tap of a block
  int32_t epilogue, to_type;   // of a factor; what adds does so to float32 rows and needs no type
  int32_t from, to;            // columns are read from and written to these buffers of the step
  int32_t group;               // columns that stay neighbours where they are written: 16, 8, 4 or 1
  int32_t side, across, kernel, stride, dilation, padding;  // of a gather: of the grid, of what is given, of the taps
  float eps;                   // of a norm
  int64_t weights;             // of a factor: packed panels of 16 nr outputs
  int64_t rests;               // 0, or int32: where each panel's rests begin, where the last ends, then the k-step of each
  int64_t rest_weights;        // of all rests, as a panel's
  int64_t scale, bias;         // float32 by output; of a norm or cast by column
  int64_t scale2, bias2;       // float32 by output: behind GELU or SiLU
  int64_t places;              // int32 by group: column that it is written to
  int64_t outside;             // of what reads a grid: what a place outside of it holds
};

// Rows in the arena: of the image, row r at offset + r row_bytes, or, not `in_arena`, of a tile alone.
struct Buffer {
  int64_t offset, row_bytes, in_arena;
};

struct Step {
  int32_t kind, stages, first_stage, first_buffer;
  int32_t rows, tile;          // rows of an image, and of a tile
  int32_t heads, width, to_type;  // of an attention: from buffer 0, (rows, 3, heads, width) bfloat16, to buffer 1,
  int32_t queries;             // for so many queries;
  int32_t weighted;            // buffer 2 has how many patches each token stands for; of a merge buffer 4
  int32_t side, patch;         // of patches and pixels: an image (3, side, side) float32 to buffer 0 as rows
  int32_t prefix, merged;      // of a merge: tokens in front that stay as they are, tokens that vanish; by the keys in
  int32_t channels;            // buffer 0 the stream, float32 rows of so many channels, goes from buffer 1 to 2, sizes to 3
  int32_t features;            // of a performer: rows of keys, queries, values of `width`, their features in whole vectors
  float epsilon;               // added to its denominators
  int32_t group;               // of its answers, as a stage's
  float protect;               // what an image's patches times the class token's attention to one takes off its similarity
  int64_t start, start_bytes;  // of patches: the first values of an image's tokens, float32, to buffer 1; of a performer w
  int64_t scale, bias;         // of an attention or performer: by column of its output; of pixels by colour
  int64_t places;
  int64_t scratch;             // in the arena
};

struct Program {
  const Step* steps;
  const Stage* stages;
  const Buffer* buffers;
  int32_t count, classes;
  int64_t logits;        // offset in the arena
  int64_t image_floats;  // from one image to the next
};

}  // namespace milkweed
