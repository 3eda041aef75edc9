// Products in AMX tiles: 32 rows by 32 outputs in four tiles of sums.
#pragma once

namespace milkweed {
namespace ISA {

constexpr int kSteps = 16;

static constexpr int rows_at_once(int) { return 32; }

// Makes the calling thread's tiles usable while it lives.
class Tiles {
 public:
  Tiles() {
    const Config config;
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;

 private:
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
};

#define MILKWEED_PRODUCT(sums, rows, weights)                                \
  if constexpr (T::kPerStep == 4) _tile_dpbusd(sums, rows, weights);         \
  else _tile_dpbf16ps(sums, rows, weights)

constexpr long kPanelBytes = 131072;  // of a block; what is beside them in the second cache is as large again

// Begins a product of `count` rows, or 32 if there are more. Its sums stay in tiles until they are taken, and what stands
// between computes beside it.
template <class T, bool BOTH>
static inline void start(const void* rows, long ld, const void* panel, int steps) {
  const char* a = (const char*)rows;
  const char* w = (const char*)panel;
  asm volatile("" : : : "memory");  // gcc does not say that tiles are loaded from memory: what was stored comes first
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (BOTH) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int k = 0; k < steps; k += 16, a += 64, w += 16 * 128) {
    _tile_loadd(6, w, 128);
    _tile_loadd(4, a, ld);
    _tile_loadd(7, w + 64, 128);
    MILKWEED_PRODUCT(0, 4, 6);
    if constexpr (BOTH) _tile_loadd(5, a + 16 * ld, ld);
    MILKWEED_PRODUCT(1, 4, 7);
    if constexpr (BOTH) {
      MILKWEED_PRODUCT(2, 5, 6);
      MILKWEED_PRODUCT(3, 5, 7);
    }
  }
}
#undef MILKWEED_PRODUCT

template <class T>
static inline void start(const void* rows, long ld, const void* panel, int steps, int count) {
  if (count > 16) start<T, true>(rows, ld, panel, steps);
  else start<T, false>(rows, ld, panel, steps);
}

static inline void take(void* sums, long ld_sums, int count) {
  char* out = (char*)sums;
  const long ld_out = 4 * ld_sums;
  _tile_stored(0, out, ld_out);
  _tile_stored(1, out + 64, ld_out);
  if (count <= 16) return;
  _tile_stored(2, out + 16 * ld_out, ld_out);
  _tile_stored(3, out + 16 * ld_out + 64, ld_out);
}

template <class T, int NR>
static inline void multiply(const void* rows, long ld, const void* panel, int steps, const Rests&, void* sums,
                            long ld_sums, int) {
  static_assert(NR == 2);
  start<T, true>(rows, ld, panel, steps);
  take(sums, ld_sums, 32);
}

}  // namespace ISA
}  // namespace milkweed
