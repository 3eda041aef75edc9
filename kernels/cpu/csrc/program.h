// What a model compiles to: steps over buffers, as plain structures that Python fills in (structs.py).
//
// `constants` is one read-only block: packed weights, scales, biases. `arena` is the memory of one caller. Both are aligned
// to 64 bytes; every offset into them is in bytes. Threads that help have arenas of their own for what one thread alone reads:
// buffers that are not `in_arena`, and scratch.
#pragma once

#include <cstdint>

namespace milkweed {

enum Type : int32_t { kF32 = 0, kBF16 = 1, kU8 = 2 };
enum Action : int32_t {
  kNorm = 0, kLinear = 1, kCast = 2, kIm2col = 3, kGlu = 4, kRotate = 5, kGather = 6, kScatter = 7, kAddBf16 = 8
};
enum Epilogue : int32_t { kStore = 0, kGelu = 1, kAdd = 2, kSilu = 3, kSiluAdd = 4 };
enum StepKind : int32_t {
  kPatches = 0, kRows = 1, kAttention = 2, kMerge = 3, kPixels = 4, kPerformer = 5, kMean = 6, kGrouped = 7, kDepthwise = 8,
  kSquares = 9, kResponseNorm = 10, kTranspose = 11, kUnmerge = 12
};

// One action on a tile of rows: a norm, a cast, the im2col of a convolution, a block-diagonal linear layer of `blocks`
// products of `inputs` by `outputs`, a gate, a rotation, a copy of rows from or to others than the tile's, or an addition of
// bfloat16 columns to float32 ones.
struct Stage {
  int32_t action, type;        // type: of a linear layer's inputs, of a norm's or cast's outputs
  int32_t blocks, inputs, outputs, nr;  // inputs: for im2col, the bytes of one tap of one block; a norm is of each of
                               // `blocks` times `inputs` columns, of which the first `outputs` are not padding; a gate
                               // has `inputs` columns of either kind; `blocks` heads of `outputs` columns are rotated;
                               // a copy joins `kernel` rows of `inputs` bytes
  int32_t epilogue, to_type;   // linear, and kAdd of a norm; the epilogues that add do so to float32 rows and ignore to_type
  int32_t from, to;            // buffers of the step that are read and written
  int32_t group;               // columns that stay adjacent where they are written: 16, 8, 4 or 1
  int32_t side, across, kernel, stride, dilation, padding;  // im2col: sides of the input and the output grid, then the taps
  int32_t centred;             // norm: whether the mean is subtracted
  float eps;                   // norm
  int64_t weights;             // linear: packed panels of 16 nr outputs; a rotation's cosines and sines, float32,
                               // (rows, `across`, 2, outputs / 2): head h takes those at h % across
  int64_t overflow;            // 0, or int32: each panel's first overflow, the end of the last, then the k-step of each
  int64_t overflow_weights;    // laid out like a panel's
  int64_t scale, bias;         // float32 by output; by column for a norm or cast
  int64_t scale2, bias2;       // float32 by output, applied after GELU or SiLU
  int64_t out_columns;         // int32 by group: the column that it is written to; of a copy the other rows, by row
  int64_t pad_values;          // of a stage that reads a grid: the row that stands for padding
};

// Rows in the arena: row r of the image at offset + r row_bytes; where not `in_arena`, row r of the current tile.
struct Buffer {
  int64_t offset, row_bytes, in_arena;
};

struct Step {
  int32_t kind, stages, first_stage, first_buffer;
  int32_t rows, tile;          // rows of an image and of a tile
  int32_t heads, width, to_type;  // attention: from buffer 0, (rows, 3, heads, width) bfloat16, to buffer 1;
  int32_t queries;             // the first so many rows are queries;
  int32_t weighted;            // buffer 2 (of a merge: buffer 4) has the number of patches that each token stands for
  int32_t side, patch;         // patches and pixels: an image of `side` by `side` to buffer 0 as rows
  int32_t prefix, merged;      // merge: leading tokens that are kept, tokens merged away, by the keys in buffer 0;
                               // unmerge: how many rows more buffer 2 has than the stream, buffer 0, by sizes in buffer 1;
  int32_t channels;            // the stream, float32 rows of so many channels, goes from buffer 1 to 2, sizes to 3
  int32_t features;            // performer: rows of keys, queries, values of `width`; features padded to whole vectors;
                               // transpose: rows of its output, in which column i of `channels` is the row kinds[i] of
                               // float32 buffer 0; of float32 they are added to buffer 1, else cast with scale and bias
  float epsilon;               // added to its denominators
  int32_t group;               // of its outputs, like a stage's
  int32_t whole;               // rows are not shared out: what is added behind a row is zeros for the next one
  int32_t biased;              // attention: `pairs` is added to the scores;
  int32_t windows;             // `rows` are those of one of so many windows
  float protect;               // merge: similarity lost per share of the class token's attention, times the patches
  int64_t start, start_bytes;  // patches: initial values of an image's tokens, float32, to buffer 1; performer: w;
                               // depthwise: its weights, float32 (channels / 16, taps, 16), of a grid of `side` by `side`
                               // with `channels` in buffer 0, to buffer 1, with a kernel of `patch`
  int64_t scale, bias;         // attention and performer: by column of the output; pixels: by colour channel
  int64_t out_columns;
  int64_t pairs;               // bfloat16, (kinds, heads, panels of queries, rows, queries of a panel);
  int64_t kinds;               // int32 by window
  int64_t scratch;             // in the arena
};

struct Program {
  const Step* steps;
  const Stage* stages;
  const Buffer* buffers;
  char* helpers;         // memory as an arena's for each thread that helps
  int32_t count, outputs, helper_count;  // outputs: float32 of an image, what the classifier reads and then the logits
  int64_t output;        // their offset in the arena
  int64_t pixels;        // of an image
  int64_t arena_bytes;
};

}  // namespace milkweed
