// The multistage pipeline of the fused Monarch MLP's weights: a ring of stages in shared memory.
//
// A stage has one slot a column warp, since each walks along its own part of every factor; the row warps that share the
// slot fill it together. Weights lie in memory in the order in which they are used, so a copy is linear and the
// next one starts where it ends.
#pragma once

#include "mlp/monarch_mlp_tiles.cuh"

namespace mw {

// One lane's part of a 16x16 piece of weights: two B operands of mma.m16n8k16.
MW_DEVICE void load_weights(uint32_t (&w)[4], const char* weights, int index) {
  load_shared_16(w, weights + (index * 32 + lane()) * 16);
}

template <class C>
struct MlpRing {
  static constexpr int stage_bytes = C::column_warps * C::slot_bytes, ring_bytes = C::stages * stage_bytes;
  // Bytes of a 16-row unit of factor1, and of what a slot holds: two of them, a hidden piece or an 8-row unit of factor2.
  static constexpr int unit_bytes = 32 * C::q, piece_bytes = 2 * unit_bytes;

  enum Part : int { kPairs, kLastUnit, kHidden, kOutput, kNothing };

  const MonarchMlpArgs& args;
  char* ring;
  const char* source = nullptr;  // this thread's first bytes of the next copy
  const float* bias = nullptr;
  int part = kPairs - 1;
  int remaining = 0;  // copies of this part
  int write_offset = 0, read_offset = 0;  // bytes in the ring

  MW_DEVICE MlpRing(const MonarchMlpArgs& arguments, char* memory) : args(arguments), ring(memory) {
    for (int stage = 0; stage < C::stages - 1; stage++) issue();
  }

  MW_DEVICE static int copier() { return C::row_warp() * 32 + lane(); }
  MW_DEVICE int hidden_pieces() const { return C::blocks_per_warp * kMlpBlocks * args.groups; }

  MW_DEVICE void start(const void* from, int64_t offset_bytes, int copies) {
    source = static_cast<const char*>(from) + offset_bytes + copier() * 16;
    remaining = copies;
  }

  // Part by part: factor1 two units at a time, the odd one, the stream, factor2.
  MW_DEVICE void next_part() {
    const int warp = C::column_warp();
    part++;
    if (part == kPairs) {
      start(args.factor1, warp * C::units_per_warp * unit_bytes, C::units_per_warp / 2);
    } else if (part == kLastUnit) {
      remaining = C::units_per_warp % 2;  // from where the pairs ended
    } else if (part == kHidden) {
      start(args.stream, static_cast<int64_t>(warp * hidden_pieces()) * piece_bytes, hidden_pieces());
      bias = args.bias1 + warp * hidden_pieces() * 16 + copier() * 4;
    } else if (part == kOutput) {
      // Unit u of factor2 belongs to warp u mod column_warps; the last ones may have one unit less.
      const int units = args.width / (8 * kMlpBlocks);
      start(args.factor2, warp * piece_bytes, (units - warp + C::column_warps - 1) / C::column_warps);
    } else {
      remaining = 1 << 30;
    }
  }

  template <int bytes>
  MW_DEVICE void copy(char* to) {
    constexpr int chunks = bytes / 16, copiers = 32 * C::row_warps;
    MW_UNROLL
    for (int i = 0; i < chunks; i += copiers)
      if (chunks % copiers == 0 || i + copier() < chunks) copy_async_16(to + i * 16, source + i * 16, true);
  }

  // Issues the copies of the next stage as one group, an empty one if nothing is left.
  MW_DEVICE void issue() {
    while (remaining == 0) next_part();
    remaining--;
    char* to = ring + write_offset + C::column_warp() * C::slot_bytes + copier() * 16;
    if (part == kPairs || part == kHidden || part == kOutput) {
      copy<piece_bytes>(to);
      source += part == kOutput ? C::column_warps * piece_bytes : piece_bytes;
    } else if (C::units_per_warp % 2 != 0 && part == kLastUnit) {
      copy<unit_bytes>(to);
    }
    if (part == kHidden) {
      if (copier() < 4) copy_async_16(to + piece_bytes, bias, true);
      bias += 16;
    }
    copy_async_commit();
    write_offset = write_offset + stage_bytes == ring_bytes ? 0 : write_offset + stage_bytes;
  }

  // Moves on to the next stage; no warp may still read the previous one, because its slots are filled again.
  MW_DEVICE const char* acquire() {
    copy_async_wait<C::stages - 2>();  // sync: stage landed
    sync_block();                      // sync: stage shared
    issue();                           // sync: refill
    const char* stage = ring + read_offset;
    read_offset = read_offset + stage_bytes == ring_bytes ? 0 : read_offset + stage_bytes;
    return stage;
  }

  // This column warp's slot of the next stage.
  MW_DEVICE const char* acquire_slot() { return acquire() + C::column_warp() * C::slot_bytes; }
};

}  // namespace mw
