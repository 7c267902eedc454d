// What a thread does between two looks at memory that another is about to write, so that it leaves the core's other thread and the memory
// bus alone meanwhile.
#pragma once

namespace penstock {

// On aarch64 isb and not yield, which is a no-operation on the cores of servers: it empties the pipeline, as pause does on x86.
inline void cpu_pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Of them so many take about 0.3 us: 140 cycles each on x86 since Skylake, 30 or so on Neoverse.
#if defined(__aarch64__)
inline constexpr int pauses_of_300_ns = 32;
#else
inline constexpr int pauses_of_300_ns = 8;
#endif

}  // namespace penstock
