// What does not depend on the instruction set: the threads of teams, and what the system is asked.
#include "team.h"

#include <climits>
#include <linux/futex.h>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

// What a test may let happen between the last thread's arrival at a barrier and the others' going on.
#if !defined(MILKWEED_BEFORE_TURN)
#define MILKWEED_BEFORE_TURN
#endif

#define MILKWEED_EXPORT extern "C" __attribute__((visibility("default")))

// The hash of the sources that this library was built from.
MILKWEED_EXPORT const char* const milkweed_cpu_sources;
const char* const milkweed_cpu_sources = SOURCES;

// Asks Linux for permission to use AMX tiles (8 kB a thread). Returns whether it was given.
MILKWEED_EXPORT bool milkweed_request_tiles() {
#if defined(__x86_64__)
  constexpr long kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

namespace milkweed {

constexpr int kMostThreads = 256;
constexpr int kSpins = 2000;    // some 20 to 80 us: longer than a member waits at most barriers, shorter than a request's pause
constexpr int kYields = 1000;   // a millisecond or less: by what a thread has longer in the longest step of a large model
constexpr int kGreeting = 100;  // spins in which a thread that is awake joins

static void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void Word::set(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (has_sleepers()) syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Word::wait_while(uint32_t value, int yields) {
  for (int i = 0; i < kSpins; i++, pause_briefly())
    if (get() != value) return;
  for (int i = 0; i < yields; i++, sched_yield())
    if (get() != value) return;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  // The kernel compares the value once more, so that no waking is lost.
  while (get() == value) syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

template <class Last>
void Member::meet(Last last) const {
  const uint32_t turn = team->turn.get();
  if (team->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < members) return team->turn.wait_while(turn, kYields);
  team->arrived.store(0, std::memory_order_relaxed);
  last(turn + 1);
  MILKWEED_BEFORE_TURN;
  team->turn.set(turn + 1);
}

void Member::wait() const {
  if (members > 1) meet([](uint32_t) {});
}

void Member::end_step() {
  step++;
  meet([this](uint32_t turn) {
    team->step = step;
    team->begins = turn;
    team->members.store(1 + team->joined.load(std::memory_order_acquire), std::memory_order_release);
  });
  members = team->members.load(std::memory_order_acquire);
}

// Once it is a member, the others wait for it: until then it does not sleep. Members are known before the step begins: one
// who did not wait for that could be done with its share and arrive at the barrier that the others are about to leave.
bool Member::join() {
  for (int i = 0; !team->done.load(std::memory_order_acquire); i++) {
    members = team->members.load(std::memory_order_acquire);
    if (members > number) {
      step = team->step;
      team->turn.wait_while(team->begins - 1, kYields);
      return true;
    }
    if (i < kSpins) pause_briefly();
    else sched_yield();
  }
  return false;
}

enum State : uint32_t { kIdle = 0, kAsked = 1, kJoined = 2 };

// A thread that waits to be asked. It lives as long as the process.
struct Worker {
  Word state;
  Work work;
  void* context;
  Team* team;
  char* memory;
  pthread_t thread;
  cpu_set_t cores;  // the caller's, of which one may be kept from this thread until it is awake
  bool kept_off, busy, helped;
};

static Worker workers[kMostThreads];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // of what follows, and of who is busy
static int created = 0, cores = 1, working = 0;

static void* live(void* argument) {
  Worker& worker = *(Worker*)argument;
  for (;;) {
    worker.state.wait_while(kIdle, 0);
    if (!worker.state.change(kAsked, kJoined)) continue;  // the image was done before
    if (worker.kept_off) pthread_setaffinity_np(worker.thread, sizeof worker.cores, &worker.cores);
    Member member{worker.team, 1 + worker.team->joined.fetch_add(1, std::memory_order_acq_rel), 0, worker.memory};
    worker.helped = member.join();
    if (worker.helped) worker.work(worker.context, member);
    worker.state.set(kIdle);
  }
  return nullptr;
}

static bool create(Worker& worker) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads that expect them
  const bool done = pthread_create(&worker.thread, nullptr, live, &worker) == 0;
  if (done) pthread_detach(worker.thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return done;
}

// A forked child has none of these threads, and maybe a mutex that one of them held.
static void forget_threads() {
  pthread_mutex_init(&mutex, nullptr);
  for (Worker& worker : workers) new (&worker) Worker();
  created = working = 0;
}

// Has `wanted` threads in all, the caller's among them; returns how many there are, fewer where the system allows no more.
MILKWEED_EXPORT int milkweed_team(int wanted) {
  static const int registered = pthread_atfork(nullptr, nullptr, forget_threads);
  (void)registered;
  pthread_mutex_lock(&mutex);
  if (wanted > cores) cores = wanted < kMostThreads ? wanted : kMostThreads;
  while (created < cores - 1 && create(workers[created])) created++;
  const int there = created + 1;
  pthread_mutex_unlock(&mutex);
  return there;
}

// Takes idle ones of the first `room` threads for a team of at most `most`, and returns how many.
static int take(int most, int room, Worker** taken) {
  int count = 0;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < created && i < room && count < most - 1 && working < cores; i++) {
    if (workers[i].busy) continue;
    workers[i].busy = true;
    taken[count++] = &workers[i];
    working++;
  }
  pthread_mutex_unlock(&mutex);
  return count;
}

// Keeps a thread that sleeps off the core of the calling one until it is awake: Linux likes to wake a thread on the core of
// the one that wakes it, where they would wait for each other.
static void keep_off(Worker& worker, const cpu_set_t& cores) {
  cpu_set_t others = cores;
  const int mine = sched_getcpu();
  if (mine >= 0 && mine < CPU_SETSIZE) CPU_CLR(mine, &others);
  worker.cores = cores;
  worker.kept_off = CPU_COUNT(&others) && pthread_setaffinity_np(worker.thread, sizeof others, &others) == 0;
}

// Asks threads to join a team, and gives those that are awake a moment for it.
static void ask(Team& team, Worker** asked, int count, const Memories& memories, Work work, void* context) {
  int awake = 0;
  cpu_set_t cores;
  const bool known = sched_getaffinity(0, sizeof cores, &cores) == 0;
  for (int i = 0; i < count; i++) {
    Worker& worker = *asked[i];
    worker.work = work;
    worker.context = context;
    worker.team = &team;
    worker.memory = memories.first + (&worker - workers) * memories.bytes;
    worker.kept_off = false;
    if (!worker.state.has_sleepers()) awake++;
    else if (known) keep_off(worker, cores);
    worker.state.set(kAsked);
  }
  for (int i = 0; i < kGreeting && team.joined.load(std::memory_order_acquire) < awake; i++) pause_briefly();
  team.members.store(1 + team.joined.load(std::memory_order_acquire), std::memory_order_release);
}

int run_together(int most, const Memories& memories, char* arena, Work work, void* context) {
  Worker* asked[kMostThreads];
  const int count = most > 1 ? take(most, memories.count, asked) : 0;
  Team team;
  if (count) ask(team, asked, count, memories, work, context);
  Member member{&team, 0, team.members.load(std::memory_order_relaxed), arena};
  work(context, member);
  if (count == 0) return 0;
  team.done.store(true, std::memory_order_release);
  int helped = 0;
  for (int i = 0; i < count; i++) {
    Worker& worker = *asked[i];
    if (worker.state.change(kAsked, kIdle)) continue;  // it has not woken up, and does not look at this team any more
    worker.state.wait_while(kJoined, kYields);
    helped += worker.helped;
  }
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < count; i++) asked[i]->busy = false;
  working -= count;
  pthread_mutex_unlock(&mutex);
  return helped;
}

// Counts threads that work on something else, such as a decoder: so many fewer help with images.
MILKWEED_EXPORT void milkweed_count_working(int more) {
  pthread_mutex_lock(&mutex);
  working += more;
  pthread_mutex_unlock(&mutex);
}

void begin_call() { milkweed_count_working(1); }
void end_call() { milkweed_count_working(-1); }

}  // namespace milkweed
