// Softmax attention for the short sequences of image models: one block per (image, head), no transposes around it.
//
// All keys and values of the head lie in shared memory, and a warp holds all scores of its 16 queries in registers,
// so the softmax is exact and takes one pass: no running maximum, no rescaling. Queries, keys and values are read
// where the qkv product left them, (batch, tokens, 3, heads, head_dim); the result is what the output projection
// takes, (batch, tokens, heads * head_dim).
//
// A token that stands for n equal ones has log(n) added to its score as a key. A size of zero drops its key, one of
// infinity makes its image NaN, as in torch.
//
// A NaN in a query stays in its row, one in a key or value in its image and head, one in a size in its image. Padded keys
// score minus infinity and padded values are zero.
#pragma once
#include "attention/short_attention_tiles.cuh"
#include "primitives.cuh"

namespace mw {

struct ShortAttentionArgs {
  const void* qkv;         // (batch, tokens, 3, heads, head_dim), 16-byte aligned
  const float* log_sizes;  // (batch, tokens), logarithms of the keys' sizes, or nullptr: all sizes are 1
  void* out;               // (batch, tokens, heads * head_dim), 16-byte aligned
  int batch, tokens, heads, head_dim;
  float scale;          // of the scores, > 0
  int multiprocessors;  // of the device: a head's queries are split over blocks where there are fewer heads
  int shared_limit;     // bytes of shared memory that a block may have
};

namespace attention {

// One head's rows: queries, keys or values.
template <class T>
struct Rows {
  const T* first;
  int stride;
  int count;
};

// Starts copying rows [from, from + rows) to shared memory; rows that do not exist become zeros.
template <class C>
MW_DEVICE void copy_rows(typename C::T* to, const Rows<typename C::T>& source, int from, int rows, int thread,
                         int threads) {
  constexpr int chunks = C::head_dim / 8;  // divides the threads: each keeps to its column
  const int column = (thread % chunks) * 8;
  for (int row = thread / chunks; row < rows; row += threads / chunks) {
    const int index = from + row, last = source.count - 1;
    const auto* chunk = source.first + (index < last ? index : last) * source.stride + column;
    copy_async_16(to + row * C::pitch + column, chunk, index <= last);
  }
}

// The 16 queries as the left operands of mma, 16 columns at a time.
template <class C>
MW_DEVICE void load_queries(uint32_t (&query)[C::head_dim / 16][4], const typename C::T* queries) {
  const auto* row = queries + (lane() % 16) * C::pitch + (lane() / 16) * 8;
  MW_UNROLL
  for (int k = 0; k < C::head_dim / 16; k++) ldmatrix_x4(query[k], row + k * 16);
}

// score[n] += queries * keys 8n..8n+7.
template <class C>
MW_DEVICE void add_scores(float (&score)[C::keys / 8][4], const uint32_t (&query)[C::head_dim / 16][4],
                          const typename C::T* keys) {
  using T = typename C::T;
  const T* row = keys + (lane() % 8 + (lane() / 16) * 8) * C::pitch + ((lane() / 8) % 2) * 8;
  MW_UNROLL
  for (int n = 0; n < C::keys / 8; n += 2) {
    MW_UNROLL
    for (int k = 0; k < C::head_dim / 16; k++) {
      uint32_t key[4];
      ldmatrix_x4(key, row + n * 8 * C::pitch + k * 16);
      mma_16x8x16<T>(score[n], query[k], key[0], key[1]);
      mma_16x8x16<T>(score[n + 1], query[k], key[2], key[3]);
    }
  }
}

// score[n] = what keys 8n..8n+7 get for their sizes, to which products are added: so it takes no more registers.
template <class C>
MW_DEVICE void set_to_log_sizes(float (&score)[C::keys / 8][4], const float* log_sizes) {
  MW_UNROLL
  for (int n = 0; n < C::keys / 8; n++) {
    MW_UNROLL
    for (int i = 0; i < 4; i++) score[n][i] = log_sizes[n * 8 + 2 * (lane() % 4) + i % 2];
  }
}

// Padded keys score minus infinity; returns the largest scores of this lane's two rows.
template <class C>
MW_DEVICE void mask_and_maximum(float (&score)[C::keys / 8][4], int tokens, float (&maximum)[2]) {
  maximum[0] = maximum[1] = -infinity();
  MW_UNROLL
  for (int n = 0; n < C::keys / 8; n++) {
    MW_UNROLL
    for (int i = 0; i < 4; i++) {
      if (n * 8 + 8 > C::min_tokens && n * 8 + 2 * (lane() % 4) + i % 2 >= tokens) score[n][i] = -infinity();
      maximum[i / 2] = fmaxf(maximum[i / 2], score[n][i]);
    }
  }
  MW_UNROLL
  for (int i = 0; i < 2; i++) {
    maximum[i] = fmaxf(maximum[i], shuffle_xor(maximum[i], 1));
    maximum[i] = fmaxf(maximum[i], shuffle_xor(maximum[i], 2));
  }
}

// out += exp2(scale * (score - maximum)) * values; `sum` adds up this lane's weights by row.
// The weights are computed 16 keys at a time, just before they are used: an mma's result is laid out in registers as
// the left operand of the next.
template <class C>
MW_DEVICE void add_values(float (&out)[C::head_dim / 8][4], float (&sum)[2], const float (&score)[C::keys / 8][4],
                          const float (&maximum)[2], float scale, const typename C::T* values) {
  using T = typename C::T;
  const T* row = values + (lane() % 16) * C::pitch + (lane() / 16) * 8;
  const float offset[2] = {-scale * maximum[0], -scale * maximum[1]};
  MW_UNROLL
  for (int k = 0; k < C::keys / 16; k++) {
    uint32_t weight[4];
    MW_UNROLL
    for (int i = 0; i < 4; i++) {
      const float* pair = &score[2 * k + i / 2][2 * (i % 2)];
      const float low = exp2_approx(fmaf(pair[0], scale, offset[i % 2]));
      const float high = exp2_approx(fmaf(pair[1], scale, offset[i % 2]));
      sum[i % 2] += low + high;
      weight[i] = pack2<T>(low, high);
    }
    MW_UNROLL
    for (int d = 0; d < C::head_dim / 8; d += 2) {
      uint32_t value[4];
      ldmatrix_x4_trans(value, row + k * 16 * C::pitch + d * 8);
      mma_16x8x16<T>(out[d], weight, value[0], value[1]);
      mma_16x8x16<T>(out[d + 1], weight, value[2], value[3]);
    }
  }
}

// Four neighbouring lanes transpose a 4x4 of registers: lane t gives word[i] = (i, t) and gets word[i] = (t, i).
MW_DEVICE void transpose_quad(uint32_t (&word)[4]) {
  MW_UNROLL
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (lane() & bit) != 0;
    MW_UNROLL
    for (int i = 0; i < 4; i++) {
      if ((i & bit) != 0) continue;
      const uint32_t received = shuffle_xor(upper ? word[i] : word[i + bit], bit);
      word[i] = upper ? received : word[i];
      word[i + bit] = upper ? word[i + bit] : received;
    }
  }
}

// Writes out / sum to memory, 16 bytes a lane; `first` is where row 0 of the 16 goes.
template <class C>
MW_DEVICE void store_rows(typename C::T* first, int stride, int rows, const float (&out)[C::head_dim / 8][4],
                          const float (&sum)[2]) {
  using T = typename C::T;
  MW_UNROLL
  for (int half = 0; half < 2; half++) {
    float total = sum[half] + shuffle_xor(sum[half], 1);
    total += shuffle_xor(total, 2);
    const float factor = reciprocal_approx(total);
    const int row = lane() / 4 + 8 * half;
    MW_UNROLL
    for (int d = 0; d < C::head_dim / 8; d += 4) {
      uint32_t word[4];
      MW_UNROLL
      for (int i = 0; i < 4; i++)
        word[i] = pack2<T>(out[d + i][2 * half] * factor, out[d + i][2 * half + 1] * factor);
      transpose_quad(word);
      if (row < rows) store_16(first + row * stride + (d + lane() % 4) * 8, word);
    }
  }
}

template <class C>
MW_GLOBAL(C::threads, C::min_blocks) short_attention(const ShortAttentionArgs args) {
  using T = typename C::T;
  wait_on_dependent_grids();
  T* keys = reinterpret_cast<T*>(shared_memory());
  T* values = keys + C::keys * C::pitch;
  T* queries = values + C::keys * C::pitch + warp() * kQueries * C::pitch;
  float* log_sizes = reinterpret_cast<float*>(values + (C::keys + C::warps * kQueries) * C::pitch);

  const int width = args.heads * C::head_dim;
  const int column = block_x() * C::head_dim;
  const int64_t image = static_cast<int64_t>(block_y()) * args.tokens * width;
  const T* head = static_cast<const T*>(args.qkv) + 3 * image + column;
  const Rows<T> query_rows{head, 3 * width, args.tokens};
  const Rows<T> key_rows{head + width, 3 * width, args.tokens};
  const Rows<T> value_rows{head + 2 * width, 3 * width, args.tokens};
  T* out_rows = static_cast<T*>(args.out) + image + column;

  // A round is 16 queries for each warp of all blocks of this head; in the last one, warps may be without any.
  const int round_queries = grid_z() * C::warps * kQueries, first_round = block_z() * C::warps * kQueries;
  copy_rows<C>(queries, query_rows, first_round + warp() * kQueries, kQueries, lane(), 32);
  copy_rows<C>(keys, key_rows, 0, C::keys, thread_index(), C::threads);
  copy_async_commit();
  copy_rows<C>(values, value_rows, 0, C::keys, thread_index(), C::threads);
  copy_async_commit();
  if (args.log_sizes != nullptr) {  // the scores are scaled after this is added; seen behind the keys barrier
    const float* sizes = args.log_sizes + static_cast<int64_t>(block_y()) * args.tokens;
    for (int key = thread_index(); key < C::keys; key += C::threads)
      log_sizes[key] = key < args.tokens ? sizes[key] / args.scale : 0.0f;
  }
  for (int round = first_round; round < args.tokens; round += round_queries) {
    const int first_query = round + warp() * kQueries;
    const bool active = first_query < args.tokens;
    if (round == first_round) {
      copy_async_wait<1>();  // sync: keys wait
      sync_block();          // sync: keys barrier
    } else {
      copy_async_wait<0>();  // sync: queries wait
      sync_warp();           // sync: queries barrier
    }
    uint32_t query[C::head_dim / 16][4];
    load_queries<C>(query, queries);
    sync_warp();
    const int next_query = first_query + round_queries;
    if (next_query < args.tokens) copy_rows<C>(queries, query_rows, next_query, kQueries, lane(), 32);
    copy_async_commit();

    float score[C::keys / 8][4] = {}, maximum[2] = {};
    if (active) {
      if (args.log_sizes != nullptr) set_to_log_sizes<C>(score, log_sizes);
      add_scores<C>(score, query, keys);
      mask_and_maximum<C>(score, args.tokens, maximum);
    }
    if (round == first_round) {
      copy_async_wait<1>();  // sync: values wait
      sync_block();          // sync: values barrier
      launch_dependent_grids();
    }
    if (active) {
      float out[C::head_dim / 8][4] = {}, sum[2] = {};
      add_values<C>(out, sum, score, maximum, args.scale * kLog2E, values);
      store_rows<C>(out_rows + first_query * width, width, args.tokens - first_query, out, sum);
    }
  }
  copy_async_wait<0>();
}

template <class C>
const char* launch_tile(const ShortAttentionArgs& args, Stream stream) {
  if (C::shared_bytes > args.shared_limit) return "short attention: the tile needs more shared memory than there is";
  const int heads = args.batch * args.heads;
  const int tiles = (args.tokens + kQueries - 1) / kQueries;
  const int max_splits = (tiles + C::warps - 1) / C::warps;
  const int per_head = (args.multiprocessors + heads - 1) / heads;  // blocks that fill the device
  const int splits = heads >= args.multiprocessors ? 1 : (per_head < max_splits ? per_head : max_splits);
  const dim3 grid(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.batch), static_cast<unsigned>(splits));
  return launch<short_attention<C>>(grid, C::threads, C::shared_bytes, stream, args);
}

template <class T, int MinTokens, int Keys, int HeadDim>
const char* launch_shape(int tile, const ShortAttentionArgs& args, Stream stream) {
  switch (tile) {
    case 0: return launch_tile<Tile<T, MinTokens, Keys, HeadDim, 4, Keys <= 208 ? 3 : 2>>(args, stream);
    case 1: return launch_tile<Tile<T, MinTokens, Keys, HeadDim, 4, 2>>(args, stream);
    case 2: return launch_tile<Tile<T, MinTokens, Keys, HeadDim, 7, Keys <= 64 ? 2 : 1>>(args, stream);
    case 3: return launch_tile<Tile<T, MinTokens, Keys, HeadDim, 8, Keys <= 64 ? 2 : 1>>(args, stream);
    default: return "short attention: no such tile";
  }
}

template <class T, int HeadDim>
const char* launch_head_dim(int tile, const ShortAttentionArgs& args, Stream stream) {
  if (args.tokens <= 64) return launch_shape<T, 1, 64, HeadDim>(tile, args, stream);
  if (args.tokens <= 128) return launch_shape<T, 65, 128, HeadDim>(tile, args, stream);
  if (args.tokens <= 208) return launch_shape<T, 129, 208, HeadDim>(tile, args, stream);
  return launch_shape<T, 209, 256, HeadDim>(tile, args, stream);
}

template <class T>
const char* launch_dtype(int tile, const ShortAttentionArgs& args, Stream stream) {
  if (args.head_dim == 32) return launch_head_dim<T, 32>(tile, args, stream);
  if (args.head_dim == 64) return launch_head_dim<T, 64>(tile, args, stream);
  return "short attention: the head dim must be 32 or 64";
}

}  // namespace attention

// Tile variants, the default first; each is valid for every shape unless shared memory is short.
inline int short_attention_tiles() { return 4; }

// Returns nullptr, or why nothing was launched.
inline const char* short_attention_launch(DType dtype, int tile, const ShortAttentionArgs& args, Stream stream) {
  if (args.tokens < 1 || args.tokens > 256) return "short attention: 1 to 256 tokens";
  if (args.heads < 1) return "short attention: there must be a head";
  if (args.batch < 0 || args.batch > 65535) return "short attention: at most 65535 images";
  if (!(args.scale > 0.0f)) return "short attention: the scale must be positive";
  if (misaligned(args.qkv, args.out)) return "short attention: tensors must be 16-byte aligned";
  if (args.batch == 0) return nullptr;
  return dtype == DType::bf16 ? attention::launch_dtype<bf16>(tile, args, stream)
                              : attention::launch_dtype<fp16>(tile, args, stream);
}

}  // namespace mw
