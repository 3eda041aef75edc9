// What does not depend on the instruction set.
#include <sys/syscall.h>
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
