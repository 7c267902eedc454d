// Exempts bookkeeping of test doubles from injected allocation failures: the real kernel and devices need no such allocations.
#pragma once

// Defined in executables that can make allocations fail (tests/memory/failing_allocations.cc); null elsewhere. Pairs nest.
extern "C" void penstock_testing_spare_allocations(bool begins) __attribute__((weak));

namespace penstock::testing {

class keeping_books {
 public:
  keeping_books() noexcept {
    if (penstock_testing_spare_allocations != nullptr) penstock_testing_spare_allocations(true);
  }
  keeping_books(const keeping_books&) = delete;
  keeping_books& operator=(const keeping_books&) = delete;
  ~keeping_books() {
    if (penstock_testing_spare_allocations != nullptr) penstock_testing_spare_allocations(false);
  }
};

}  // namespace penstock::testing
