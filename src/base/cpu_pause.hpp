// Pauses a thread that polls memory, so that it leaves the core's other hardware thread and the memory bus alone.
#pragma once

namespace penstock {

// On aarch64 isb, not yield, which does nothing on server cores. isb empties the pipeline, as pause does on x86.
inline void cpu_pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// How many pauses take about 0.3 us: 140 cycles each on x86 since Skylake, about 30 on Neoverse.
#if defined(__aarch64__)
inline constexpr int pauses_of_300_ns = 32;
#else
inline constexpr int pauses_of_300_ns = 8;
#endif

}  // namespace penstock
