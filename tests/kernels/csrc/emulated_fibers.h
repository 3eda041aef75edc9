// Fibers: stacks that take turns on one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__) || !defined(__x86_64__)
#define MW_UCONTEXT 1
#include <ucontext.h>
#endif

namespace mw::emulator {

constexpr size_t kStackBytes = 256 * 1024;

#ifdef MW_UCONTEXT
struct Context {
  ucontext_t state;
};
inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }
inline void make_context(Context& context, char* stack, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = kStackBytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}
#else
// swapcontext makes a system call each time, which was most of the emulator's time; this saves what the System V ABI
// says a callee must.
extern "C" __attribute__((visibility("hidden"))) void mw_switch_stack(void** save, void* load);
asm(R"(
.text
.hidden mw_switch_stack
.weak mw_switch_stack
.type mw_switch_stack, @function
mw_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
struct Context {
  void* stack = nullptr;
};
inline void switch_context(Context& from, Context& to) { mw_switch_stack(&from.stack, to.stack); }
inline void make_context(Context& context, char* stack, void (*entry)()) {
  // What mw_switch_stack takes off: six registers, then where to return to, which is 16-byte aligned because a
  // function expects its stack to be so before the call that pushed its return address.
  auto* top = reinterpret_cast<void**>(stack + kStackBytes - 64);
  top[0] = reinterpret_cast<void*>(entry);
  top[1] = nullptr;
  for (int i = 1; i <= 6; i++) top[-i] = nullptr;
  context.stack = top - 6;
}
#endif

}  // namespace mw::emulator
