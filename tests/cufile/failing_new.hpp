// operator new of this executable, which fails when a test says so. Each thread has its own numbers. Not under sanitizers, which have one
// of their own: there nothing is counted and nothing fails.
#pragma once

namespace penstock::testing::failing_new {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool available = false;
#else
inline constexpr bool available = true;
#endif

inline constexpr long no_limit = -1;
inline thread_local long count = 0;           // allocations so far
inline thread_local long allowed = no_limit;  // how many more succeed

}  // namespace penstock::testing::failing_new
