// The microkernel in AMX: 32 rows by 32 outputs in four accumulator tiles.
#pragma once

namespace milkweed {
namespace ISA {

constexpr int kStepMultiple = 16;

static constexpr int microkernel_rows(int) { return 32; }

// Configures the calling thread's tiles, and releases them at its end.
class AmxTiles {
 public:
  AmxTiles() {
    const Config config;
    _tile_loadconfig(&config);
  }
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;

 private:
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
};

#define MILKWEED_TILE_DP(sums, rows, weights)                                \
  if constexpr (T::kPerStep == 4) _tile_dpbusd(sums, rows, weights);         \
  else _tile_dpbf16ps(sums, rows, weights)

constexpr long kL2PanelBytes = 131072;  // panels of a block; what is beside them in the L2 cache is as large again

// Starts a product of 32 rows, or of 16 where not TWO_ROW_TILES. Its sums stay in tiles until tile_store; what is
// executed in between overlaps with it.
template <class T, bool TWO_ROW_TILES>
static inline void tile_gemm(const void* rows, long ld, const void* panel, int steps) {
  const char* a = (const char*)rows;
  const char* w = (const char*)panel;
  asm volatile("" : : : "memory");  // gcc does not know that tile loads read memory: earlier stores must come first
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (TWO_ROW_TILES) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int k = 0; k < steps; k += 16, a += 64, w += 16 * 128) {
    _tile_loadd(6, w, 128);
    _tile_loadd(4, a, ld);
    _tile_loadd(7, w + 64, 128);
    MILKWEED_TILE_DP(0, 4, 6);
    if constexpr (TWO_ROW_TILES) _tile_loadd(5, a + 16 * ld, ld);
    MILKWEED_TILE_DP(1, 4, 7);
    if constexpr (TWO_ROW_TILES) {
      MILKWEED_TILE_DP(2, 5, 6);
      MILKWEED_TILE_DP(3, 5, 7);
    }
  }
}
#undef MILKWEED_TILE_DP

template <class T>
static inline void tile_gemm(const void* rows, long ld, const void* panel, int steps, int count) {
  if (count > 16) tile_gemm<T, true>(rows, ld, panel, steps);
  else tile_gemm<T, false>(rows, ld, panel, steps);
}

// Writes the sums of the last product of `count` rows.
static inline void tile_store(void* sums, long ld_sums, int count) {
  char* out = (char*)sums;
  const long ld_out = 4 * ld_sums;
  _tile_stored(0, out, ld_out);
  _tile_stored(1, out + 64, ld_out);
  if (count <= 16) return;
  _tile_stored(2, out + 16 * ld_out, ld_out);
  _tile_stored(3, out + 16 * ld_out + 64, ld_out);
}

template <class T, int NR>
static inline void gemm(const void* rows, long ld, const void* panel, int steps, const Overflow&, void* sums, long ld_sums,
                        int) {
  static_assert(NR == 2);
  tile_gemm<T, true>(rows, ld, panel, steps);
  tile_store(sums, ld_sums, 32);
}

}  // namespace ISA
}  // namespace milkweed
