// All kernels for one instruction set: compiled once for each, with ISA its name and the compiler's flags for it.
#include "../../images/resize.h"
#include "merging.h"

namespace milkweed {
namespace ISA {

// Patches of an image (3, side, side) float32 as bfloat16 rows (patches, 3 patch patch), and the tokens' first values.
static void run_patches(const Program& p, const Step& s, const char* base, char* arena, const float* pixels) {
  const Buffer &rows = p.buffers[s.first_buffer], &tokens = p.buffers[s.first_buffer + 1];
  const int across = s.side / s.patch;
  memcpy(arena + tokens.offset, base + s.start, s.start_bytes);
  for (int y = 0; y < across; y++)
    for (int x = 0; x < across; x++) {
      char* to = arena + rows.offset + (y * across + x) * rows.row_bytes;
      for (int c = 0; c < 3; c++)
        for (int i = 0; i < s.patch; i++, to += 2 * s.patch) {
          const float* from = pixels + ((long)c * s.side + y * s.patch + i) * s.side + x * s.patch;
          for (int j = 0; j < s.patch; j += kLanes) {
            f32x16 some{};  // what is written behind the patch is written again, or meets weights of zero
            if (s.patch - j < kLanes) memcpy(&some, from + j, 4 * (s.patch - j));
            else some = load<f32x16>(from + j);
            store(to + 2 * j, to_bf16(some));
          }
        }
    }
}

// Products of the same rows by the same panel, for benchmarks: what a core can do at most. Returns multiply-accumulates.
template <class T>
static int64_t multiply_again(int nr, int repeats) {
  constexpr int steps = 64;
  alignas(64) char rows[kMostRows * steps * 4] = {}, panel[kMostNr * kLanes * steps * 4] = {};
  alignas(64) float sums[kMostRows * kMostNr * kLanes];
  for (int i = 0; i < repeats; i++) {
    multiply<T>(nr, rows, steps * 4, panel, steps, {}, sums, kLanes * nr, nr);
    asm volatile("" : : "r"(rows), "r"(panel), "r"(sums) : "memory");  // each of them counts, though all are alike
  }
  return (int64_t)repeats * rows_at_once(nr) * kLanes * nr * steps * T::kPerStep;
}

}  // namespace ISA

extern "C" __attribute__((visibility("default"))) int64_t PEAK(int eight_bits, int nr, int repeats) {
  using namespace ISA;
  const Tiles tiles;
  (void)tiles;
  return eight_bits ? multiply_again<I8>(nr, repeats) : multiply_again<BF16>(nr, repeats);
}

extern "C" __attribute__((visibility("default"))) void RESIZE(const uint8_t* pixels, int width, const Axis* across, const Axis* down, char* scratch, uint8_t* out) {
  ISA::resize(pixels, width, *across, *down, scratch, out);
}

extern "C" __attribute__((visibility("default"))) void ENTRY(const Program* p, const void* constants, void* arena, const float* images, int count, float* logits) {
  using namespace ISA;
  const Tiles tiles;
  (void)tiles;
  const char* base = (const char*)constants;
  char* a = (char*)arena;
  // One after another: an image's rows fill a tile, and what the steps hand on stays in the caches.
  for (; count > 0; count--, images += p->image_floats, logits += p->classes) {
    for (int i = 0; i < p->count; i++) {
      const Step& s = p->steps[i];
      if (s.kind == kPatches) run_patches(*p, s, base, a, images);
      else if (s.kind == kRows) run_rows(*p, s, base, a);
      else if (s.kind == kAttention) run_attention(*p, s, base, a);
      else if (s.kind == kPixels) run_pixels(*p, s, base, a, images);
      else if (s.kind == kPerformer) run_performer(*p, s, base, a);
      else if (s.kind == kMean) run_mean(*p, s, a);
      else if (s.kind == kGrouped) run_grouped(*p, s, base, a);
      else run_merge(*p, s, a);
    }
    memcpy(logits, a + p->logits, 4L * p->classes);
  }
}

}  // namespace milkweed
