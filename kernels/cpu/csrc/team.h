// Threads that compute one image together. Threads that have nothing to do are asked when an image begins, so that no more
// threads work than there are cores. Those that are awake help from the first step on; those that slept join between two
// steps, once they are there: waking takes microseconds to milliseconds, for which nobody waits.
#pragma once

#include <atomic>
#include <cstdint>

namespace milkweed {

// A word that threads wait for. They spin for some microseconds, then give their core to others so many times, then sleep
// until `set` wakes them.
class Word {
 public:
  uint32_t get() const { return value_.load(std::memory_order_acquire); }
  bool change(uint32_t from, uint32_t to) { return value_.compare_exchange_strong(from, to); }
  bool has_sleepers() const { return sleepers_.load(std::memory_order_seq_cst) != 0; }
  void set(uint32_t value);
  void wait_while(uint32_t value, int yields);

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
};

// What the members of a team share.
struct Team {
  std::atomic<int> joined{0};   // threads beside the caller's that are there
  std::atomic<int> members{1};  // those who compute the current step: the caller's, and who had joined when it began
  std::atomic<int> arrived{0};  // members at the barrier, which all of them reach before one goes on
  std::atomic<bool> done{false};
  int step = 0;                 // the current one
  uint32_t begins = 0;          // the turn with which it begins
  Word turn;                    // barriers that all have left
};

// One thread of a team. Its memory holds what nobody else reads: the arena's for the thread that called, number 0.
struct Member {
  Team* team;
  int number, members;
  char* memory;
  int step = 0;

  // Waits for the other members; the last to arrive calls `last` before they go on.
  template <class Last>
  void meet(Last last) const;
  // Waits for the other members within a step.
  void wait() const;
  // Waits for them at the end of a step; who has joined meanwhile is a member from the next step on.
  void end_step();
  // Waits to be a member. Returns false if the image was done before.
  bool join();

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

typedef void (*Work)(void* context, Member& member);

// Memory for the members beside the one that calls: as many bytes for each.
struct Memories {
  char* first;
  int64_t bytes;
  int32_t count;
};

// Counts the calling thread, or no longer counts it, as one that works.
void begin_call();
void end_call();

// Calls `work` on this thread, between the two, and on idle ones, at most `most` in all; returns how many of the others took part.
int run_together(int most, const Memories& memories, char* arena, Work work, void* context);

}  // namespace milkweed
