// Memory runs out while the library checks the machine for GPUDirect.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <new>
#include <string>

#include "memory/failing_allocations.hpp"
#include "path/cufile_library.hpp"
#include "support/faulty_kernel.hpp"
#include "support/forwarding_kernel.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing {
namespace {

// Answers with one file wherever /proc/driver is asked.
class kernel_with_driver final : public forwarding_kernel {
 public:
  explicit kernel_with_driver(std::string answer) : answer_(std::move(answer)) {}
  result<int> open(const std::string& path, int flags, unsigned mode) override {
    return forwarding_kernel::open(path.starts_with("/proc/driver/") ? answer_ : path, flags, mode);
  }

 private:
  const std::string answer_;
};

TEST(cufile_library_without_memory, no_descriptor_is_left_open) {
  const auto directory = temp_dir::on_build_disk();
  const auto answer = directory.file("params");
  std::ofstream(answer) << "EnableResizableBar: 0\n";
  faulty_kernel kernel(std::make_shared<kernel_with_driver>(answer));
  (void)path::cufile_library::possible(kernel);
  ASSERT_GT(kernel.count("open"), 0U) << "the machine was not asked";

  const auto before = failed_allocations();
  for (std::uint64_t nth = 1; nth <= 40; ++nth) {
    try {
      const failing_allocations armed(allocations_of::the_caller, nth);
      (void)path::cufile_library::possible(kernel);
    } catch (const std::bad_alloc&) {  // its callers say so in their own way
    }
    EXPECT_EQ(kernel.open_descriptors(), 0) << "allocation " << nth;
  }
  EXPECT_GT(failed_allocations(), before);
}

}  // namespace
}  // namespace penstock::testing
