// What does not depend on the instruction set: the threads of teams, and what the system is asked.
#include "team.h"

#include <climits>
#include <linux/futex.h>
#include <new>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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
constexpr int kSpins = 2000;  // some 20 to 80 us: longer than a member waits at most barriers, shorter than a request's pause

static void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void Word::set(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst)) syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Word::wait_while(uint32_t value) {
  for (int i = 0; i < kSpins; i++, pause_briefly())
    if (get() != value) return;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  // The kernel compares the value once more, so that no waking is lost.
  while (get() == value) syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void Member::wait() const {
  if (members == 1) return;
  const uint32_t turn = barrier->turn.get();
  if (barrier->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < members) return barrier->turn.wait_while(turn);
  barrier->arrived.store(0, std::memory_order_relaxed);
  barrier->turn.set(turn + 1);
}

// A thread that waits for work: its turn is odd while it has some. It lives as long as the process.
struct Worker {
  Word turn;
  Work work;
  void* context;
  Member member;
  double seconds;
  bool busy;
};

static Worker workers[kMostThreads];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // of what follows, and of who is busy
static int created = 0, cores = 1, working = 0;

static double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

static void* live(void* argument) {
  Worker& worker = *(Worker*)argument;
  for (uint32_t turn = 0;; turn += 2) {
    worker.turn.wait_while(turn);
    const double started = thread_seconds();
    worker.work(worker.context, worker.member);
    worker.seconds = thread_seconds() - started;
    worker.turn.set(turn + 2);
  }
  return nullptr;
}

static bool create(Worker& worker) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads that expect them
  pthread_t thread;
  const bool done = pthread_create(&thread, nullptr, live, &worker) == 0;
  if (done) pthread_detach(thread);
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
static int take(int most, int room, Worker** team) {
  int count = 0;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < created && i < room && count < most - 1 && working < cores; i++) {
    if (workers[i].busy) continue;
    workers[i].busy = true;
    team[count++] = &workers[i];
    working++;
  }
  pthread_mutex_unlock(&mutex);
  return count;
}

double run_together(int most, const Memories& memories, char* arena, Work work, void* context) {
  Worker* team[kMostThreads];
  const int count = most > 1 ? take(most, memories.count, team) : 0;
  Barrier barrier;
  barrier.members = count + 1;
  for (int i = 0; i < count; i++) {
    Worker& worker = *team[i];
    worker.work = work;
    worker.context = context;
    worker.member = {&barrier, i + 1, count + 1, memories.first + (&worker - workers) * memories.bytes};
    worker.turn.set(worker.turn.get() + 1);
  }
  work(context, {&barrier, 0, count + 1, arena});
  if (count == 0) return 0;
  double seconds = 0;
  for (int i = 0; i < count; i++) {
    team[i]->turn.wait_while(team[i]->turn.get() | 1);
    seconds += team[i]->seconds;
  }
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < count; i++) team[i]->busy = false;
  working -= count;
  pthread_mutex_unlock(&mutex);
  return seconds;
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
