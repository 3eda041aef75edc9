// Threads that compute one image together. Who works on an image is decided when it begins: threads that have nothing to do
// join, so that no more threads work than there are cores.
#pragma once

#include <atomic>
#include <cstdint>

namespace milkweed {

// A word that threads wait for: they spin for some microseconds, then sleep until `set` wakes them.
class Word {
 public:
  uint32_t get() const { return value_.load(std::memory_order_acquire); }
  void set(uint32_t value);
  void wait_while(uint32_t value);

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
};

// What the members of a team share. A barrier is what all of them reach before one goes on.
struct Barrier {
  int members = 1;
  std::atomic<int> arrived{0};
  Word turn;
};

// One thread of a team. Its memory holds what nobody else reads: the arena's for the thread that called, number 0.
struct Member {
  Barrier* barrier;
  int number, members;
  char* memory;

  void wait() const;

  struct Share {
    int first, last;
  };
  // This member's share of n items that belong together in groups of `unit`.
  Share share(int n, int unit = 1) const {
    const long units = (n + unit - 1) / unit;
    const int first = (int)(units * number / members) * unit, last = (int)(units * (number + 1) / members) * unit;
    return {first, last < n ? last : n};
  }
};

typedef void (*Work)(void* context, const Member& member);

// Memory for the members beside the one that calls: as many bytes for each.
struct Memories {
  char* first;
  int64_t bytes;
  int32_t count;
};

// Counts the calling thread, or no longer counts it, as one that works.
void begin_call();
void end_call();

// Calls `work` on this thread, between the two, and on idle ones, at most `most` in all; returns the CPU seconds of the others.
double run_together(int most, const Memories& memories, char* arena, Work work, void* context);

}  // namespace milkweed
