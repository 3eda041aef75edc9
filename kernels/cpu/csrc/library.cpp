// What belongs to no instruction set.
#include <sys/syscall.h>
#include <unistd.h>

#define MILKWEED_EXPORT extern "C" __attribute__((visibility("default")))

// The hash of all that this library is made of.
MILKWEED_EXPORT const char* const milkweed_cpu_sources;
const char* const milkweed_cpu_sources = SOURCES;

// Linux lets a process use AMX's tiles, 8 kB a thread, only when it asks. Returns whether it may.
MILKWEED_EXPORT bool milkweed_request_tiles() {
#if defined(__x86_64__)
  constexpr long kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}
