// Pauses a thread that polls memory, so that it does not slow down the core's other hardware thread or load the memory bus.
#pragma once

namespace penstock {

// aarch64 uses isb because yield does nothing on server cores; isb flushes the pipeline, like pause on x86.
inline void cpu_pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// The number of pauses that take about 0.3 us. A pause takes 140 cycles on x86 since Skylake, about 30 on Neoverse.
#if defined(__aarch64__)
inline constexpr int pauses_of_300_ns = 32;
#else
inline constexpr int pauses_of_300_ns = 8;
#endif

}  // namespace penstock
