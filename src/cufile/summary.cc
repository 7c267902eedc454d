// Implements PENSTOCK_LOG=summary for a program that makes no cuFile calls; otherwise the engine reports where the bytes went. Also prints
// for libpenstock_direct_io.so, which uses only the C library.
#include <pthread.h>

#include <cstdlib>
#include <cstring>

#include "base/output.hpp"
#include "cufile/driver.hpp"

namespace {

// Only reads counters, because GPU driver calls are no longer safe at this point.
[[gnu::destructor]] void tell_summary() {
  const char* wanted = std::getenv("PENSTOCK_LOG");  // NOLINT(concurrency-mt-unsafe): read only
  if (wanted == nullptr || std::strcmp(wanted, "summary") != 0) return;
  if (!penstock::cufile::driver::current().was_used()) penstock::print_error("penstock: cuFile was not used\n");
}

}  // namespace

// Not a cancellation point: the caller may hold a descriptor that nothing else would close.
extern "C" __attribute__((visibility("default"))) void penstock_print_error(const char* text) {
  int before = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  penstock::print_error(text);
  pthread_setcancelstate(before, nullptr);
}
