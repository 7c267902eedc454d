// What stands in for the kernel or a device in tests keeps books, which the real one does not: where an executable makes allocations fail,
// those books are spared.
#pragma once

// Defined where allocations can be made to fail (tests/memory/failing_allocations.cc); null elsewhere. Pairs nest.
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
