// The ring of stages in shared memory through which the weights of the fused Monarch MLP come.
//
// A stage has one slot a member, because each member of a team walks along its own part of every factor; the warps of
// a member fill its slots. Weights lie in memory in the order in which they are used, so a copy is linear and the
// next one starts where it ends.
#pragma once

#include "mlp/monarch_mlp_tiles.cuh"

namespace mw {

// One lane's part of a 16x16 piece of weights: two B operands of mma.m16n8k16.
struct alignas(16) WeightFragment {
  uint32_t r[4];
};

MW_DEVICE WeightFragment weight_fragment(const char* weights, int index) {
  return *reinterpret_cast<const WeightFragment*>(weights + (index * 32 + lane()) * 16);
}

template <class C>
struct MlpRing {
  static constexpr int NB = C::nblocks, Q = C::q;
  static constexpr int stage_bytes = C::members * C::slot_bytes, ring_bytes = C::stages * stage_bytes;
  // Bytes of a 16-row unit of factor1, of a hidden piece and of an 8-row unit of factor2.
  static constexpr int unit1_bytes = 32 * Q, piece_bytes = 64 * Q, unit2_bytes = 16 * NB * Q;

  enum Part : int { kPairs, kLastUnit, kHidden, kOutput, kNothing };

  const MonarchMlpArgs& args;
  char* ring;
  const char* source = nullptr;  // this thread's first bytes of the next copy
  const float* bias = nullptr;
  int part = kPairs - 1;
  int left = 0;  // copies left of this part
  int filled = 0, taken = 0;  // offsets in the ring

  MW_DEVICE MlpRing(const MonarchMlpArgs& arguments, char* memory) : args(arguments), ring(memory) {
    for (int stage = 0; stage < C::stages - 1; stage++) issue();
  }

  MW_DEVICE static int copier() { return C::team() * 32 + lane(); }
  MW_DEVICE int hidden_pieces() const { return C::blocks_each * NB * args.groups; }

  MW_DEVICE void start(const void* from, int64_t offset_bytes, int copies) {
    source = static_cast<const char*>(from) + offset_bytes + copier() * 16;
    left = copies;
  }

  // Part by part: factor1 two units at a time, the odd one, the stream, factor2.
  MW_DEVICE void next_part() {
    const int member = C::member();
    part++;
    if (part == kPairs) {
      start(args.factor1, member * C::units_each * unit1_bytes, C::units_each / 2);
    } else if (part == kLastUnit) {
      left = C::units_each % 2;  // from where the pairs ended
    } else if (part == kHidden) {
      start(args.stream, static_cast<int64_t>(member * hidden_pieces()) * piece_bytes, hidden_pieces());
      bias = args.bias1 + member * hidden_pieces() * 16 + copier() * 4;
    } else if (part == kOutput) {
      // Unit u of factor2 belongs to member u mod members; the last ones may have one unit less.
      start(args.factor2, member * unit2_bytes, (args.width / (8 * NB) - member + C::members - 1) / C::members);
    } else {
      left = 1 << 30;
    }
  }

  template <int bytes>
  MW_DEVICE void copy(char* to) {
    constexpr int chunks = bytes / 16, copiers = 32 * C::teams;
    MW_UNROLL
    for (int i = 0; i < chunks; i += copiers)
      if (chunks % copiers == 0 || i + copier() < chunks) copy_async_16(to + i * 16, source + i * 16, true);
  }

  // Issues the copies of the next stage as one group, an empty one if nothing is left.
  MW_DEVICE void issue() {
    while (left == 0) next_part();
    left--;
    char* to = ring + filled + C::member() * C::slot_bytes + copier() * 16;
    if (part == kPairs || part == kHidden) {
      copy<piece_bytes>(to);
      source += piece_bytes;
      if (part == kHidden) {
        if (copier() < 4) copy_async_16(to + piece_bytes, bias, true);
        bias += 16;
      }
    } else if (part == kOutput) {
      copy<unit2_bytes>(to);
      source += C::members * unit2_bytes;
    } else if (C::units_each % 2 != 0 && part == kLastUnit) {
      copy<unit1_bytes>(to);
    }
    copy_async_commit();
    filled = filled + stage_bytes == ring_bytes ? 0 : filled + stage_bytes;
  }

  // Moves on to the next stage; no warp may still read the previous one, because its slots are filled again.
  MW_DEVICE const char* acquire() {
    copy_async_wait<C::stages - 2>();  // sync: stage landed
    sync_block();                      // sync: stage shared
    issue();                           // sync: refill
    const char* stage = ring + taken;
    taken = taken + stage_bytes == ring_bytes ? 0 : taken + stage_bytes;
    return stage;
  }

  // This member's slot of the next stage.
  MW_DEVICE const char* acquire_own() { return acquire() + C::member() * C::slot_bytes; }
};

}  // namespace mw
