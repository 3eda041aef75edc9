// All kernels of one instruction set: compiled once for each, with its compiler flags and its name in ISA.
#include "../../images/resize.h"
#include "merging.h"

#define MILKWEED_EXPORT extern "C" __attribute__((visibility("default")))

namespace milkweed {
namespace ISA {

// Patchifies an image into bfloat16 rows (patches, 3 patch patch), and initialises the tokens.
static void run_patches(const Program& p, const Step& s, const char* base, char* arena, const Picture& picture,
                        const Member& member) {
  const Buffer &rows = p.buffers[s.first_buffer], &tokens = p.buffers[s.first_buffer + 1];
  const int patches = s.side / s.patch;
  if (member.number == 0) memcpy(arena + tokens.offset, base + s.start, s.start_bytes);
  // What is written past a patch that is no multiple of a vector reaches into the next one.
  const Member::Share mine = member.share(patches, s.patch % kLanes ? patches : 1);
  for (int y = mine.first; y < mine.last; y++)
    for (int x = 0; x < patches; x++) {
      char* to = arena + rows.offset + (y * patches + x) * rows.row_bytes;
      for (int c = 0; c < 3; c++)
        for (int i = 0; i < s.patch; i++, to += 2 * s.patch) {
          const long first = ((long)y * s.patch + i) * s.side + x * s.patch;
          for (int j = 0; j < s.patch; j += kLanes)  // what is written past the patch is overwritten, or meets zero weights
            store(to + 2 * j, to_bf16(picture.values(c, first + j, s.patch - j, p.pixels)));
        }
    }
}

// Columns of float32 rows as rows: sixteen rows by sixteen columns at a time. Rows that there are not are zeros.
template <int TO>
static void run_transpose(const Program& p, const Step& s, const char* base, char* arena, const Member& member) {
  const Buffer &in = p.buffers[s.first_buffer], &out = p.buffers[s.first_buffer + 1];
  const int32_t *from = (const int32_t*)(base + s.kinds), *columns = (const int32_t*)(base + s.out_columns);
  const float *scale = (const float*)(base + s.scale), *bias = (const float*)(base + s.bias);
  const Member::Share mine = member.share(s.features, kLanes);
  for (int r = mine.first; r < mine.last; r += kLanes) {
    const int count = mine.last - r < kLanes ? mine.last - r : kLanes;
    for (int c = 0; c < s.channels; c += kLanes) {
      float block[kLanes][kLanes];
      for (int i = 0; i < kLanes; i++) {
        const int row = from[c + i];
        store(block[i], row < s.rows ? load<f32x16>(arena + in.offset + row * in.row_bytes + 4L * r) : f32x16{});
      }
      for (int j = 0; j < count; j++) {
        float column[kLanes];
        for (int i = 0; i < kLanes; i++) column[i] = block[i][j];
        const f32x16 v = load<f32x16>(column);
        char* to = arena + out.offset + (r + j) * out.row_bytes;
        if constexpr (TO == kF32) store((float*)to + c, load<f32x16>((float*)to + c) + v);
        else scatter_as<TO>(to, columns + c / s.group, s.group, fma(v, load<f32x16>(scale + c), load<f32x16>(bias + c)));
      }
    }
  }
}

static void run_transpose(const Program& p, const Step& s, const char* base, char* arena, const Member& member) {
  if (s.to_type == kF32) run_transpose<kF32>(p, s, base, arena, member);
  else if (s.to_type == kU8) run_transpose<kU8>(p, s, base, arena, member);
  else run_transpose<kBF16>(p, s, base, arena, member);
}

// The mean of the rows, float32.
static void run_mean(const Program& p, const Step& s, char* arena) {
  const Buffer &in = p.buffers[s.first_buffer], &out = p.buffers[s.first_buffer + 1];
  for (int c = 0; c < s.channels; c += kLanes) {
    f32x16 total{};
    const char* from = arena + in.offset + 4L * c;
    for (int r = 0; r < s.rows; r++, from += in.row_bytes) total += load<f32x16>(from);
    store(arena + out.offset + 4L * c, total / (float)s.rows);
  }
}

struct Image {
  const Program* program;
  const char* base;
  char* arena;
  Picture picture;
};

// What one member of a team does of an image. Behind each step all wait for each other.
static void run_image(void* context, Member& member) {
  [[maybe_unused]] const AmxTiles tiles;
  const Image& image = *(const Image*)context;
  const Program& p = *image.program;
  const char* base = image.base;
  char* arena = image.arena;
  for (; member.step < p.count; member.end_step()) {
    const Step& s = p.steps[member.step];
    if (s.kind == kPatches) run_patches(p, s, base, arena, image.picture, member);
    else if (s.kind == kRows) run_rows(p, s, base, arena, member);
    else if (s.kind == kAttention) run_attention(p, s, base, arena, member);
    else if (s.kind == kPixels) run_pixels(p, s, base, arena, image.picture, member);
    else if (s.kind == kPerformer) run_performer(p, s, base, arena, member);
    else if (s.kind == kMean && member.number == 0) run_mean(p, s, arena);
    else if (s.kind == kGrouped) run_grouped(p, s, base, arena, member);
    else if (s.kind == kDepthwise) run_depthwise(p, s, base, arena, member);
    else if (s.kind == kSquares) run_squares(p, s, arena, member);
    else if (s.kind == kResponseNorm) run_response_norm(p, s, base, arena, member);
    else if (s.kind == kTranspose) run_transpose(p, s, base, arena, member);
    else if (s.kind == kMerge) run_merge(p, s, arena, member);
    else if (s.kind == kUnmerge && member.number == 0) run_unmerge(p, s, arena);
  }
}

// Repeats one microkernel call on data in L1, for benchmarks: the peak of a core. Returns multiply-accumulates.
template <class T>
static int64_t peak_gemm(int nr, int repeats) {
  constexpr int steps = 64;
  alignas(64) char rows[kMaxRows * steps * 4] = {}, panel[kMaxNr * kLanes * steps * 4] = {};
  alignas(64) float sums[kMaxRows * kMaxNr * kLanes];
  for (int i = 0; i < repeats; i++) {
    gemm<T>(nr, rows, steps * 4, panel, steps, {}, sums, kLanes * nr, nr);
    asm volatile("" : : "r"(rows), "r"(panel), "r"(sums) : "memory");  // no call may be optimised away
  }
  return (int64_t)repeats * microkernel_rows(nr) * kLanes * nr * steps * T::kPerStep;
}

}  // namespace ISA

MILKWEED_EXPORT int64_t PEAK(int eight_bits, int nr, int repeats) {
  using namespace ISA;
  [[maybe_unused]] const AmxTiles tiles;
  return eight_bits ? peak_gemm<I8>(nr, repeats) : peak_gemm<BF16>(nr, repeats);
}

MILKWEED_EXPORT void RESIZE(const uint8_t* pixels, int width, const Axis* across, const Axis* down, char* scratch,
                            uint8_t* out) {
  ISA::resize(pixels, width, *across, *down, scratch, out);
}

// The images are as `Picture` has them, one behind the other. Returns how many threads helped, summed over images.
MILKWEED_EXPORT int ENTRY(const Program* p, const void* constants, void* arena, const char* images, const float* normal,
                          int count, float* outputs, int threads) {
  int helped = 0;
  begin_call();
  const Memories memories{p->helpers, p->arena_bytes, p->helper_count};
  // Image by image: one image's rows fill a tile, and its activations stay in the caches.
  for (; count > 0; count--, images += p->pixels * (normal ? 4 : 12), outputs += p->outputs) {
    ISA::Image image{p, (const char*)constants, (char*)arena, {images, normal}};
    helped += run_together(threads, memories, (char*)arena, ISA::run_image, &image);
    memcpy(outputs, (char*)arena + p->output, 4L * p->outputs);
  }
  end_call();
  return helped;
}

}  // namespace milkweed
