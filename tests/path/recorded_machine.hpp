// The doors of a machine that seems to have GPUDirect: nvidia-fs, a GPU, which is the host device by another name, and the stand-in for
// libcufile. An engine over them goes the whole way of a GPU-direct request. One at a time in a process.
#pragma once

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "core/engine_core.hpp"
#include "device/device.hpp"
#include "path/pretending_kernel.hpp"
#include "path/recorder_library.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing {

// The host device as a GPU, beside a second one that has no memory to use, so that no engine may make a context on it.
class pretended_gpu final : public device::driver {
 public:
  [[nodiscard]] std::string_view kind() const override { return "cuda"; }
  result<int> count() override { return 2; }
  result<device::device_facts> describe(int) override { return inner_->describe(0); }
  result<device::memory_info> classify(const void* memory) override { return inner_->classify(memory); }
  result<device::session*> open(int ordinal, void* context) override {
    ++opened_;
    return inner_->open(ordinal, context);
  }
  std::optional<current_context> current() override { return is_current_ ? std::optional(current_context{}) : std::nullopt; }

  void make_current() { is_current_ = true; }
  [[nodiscard]] unsigned opened() const { return opened_; }

 private:
  std::atomic<bool> is_current_{false};
  std::atomic<unsigned> opened_{0};
  std::shared_ptr<device::driver> inner_ = device::make_host_driver();
};

class recorded_machine {
 public:
  static constexpr auto nvidia_fs_version = "/proc/driver/nvidia-fs/version";

  // stand_in: the full name of cufile_recorder.
  explicit recorded_machine(const char* stand_in) : recorder(stand_in), stand_in_(stand_in) {
    std::ofstream(folder_.file("version")) << "version: 2.28.4\n";
    kernel_->hide_below("/proc/driver/nvidia");
    kernel_->show(nvidia_fs_version, folder_.file("version"));
    kernel_->pretend_direct_io();
    session() = *gpu_->open(0, nullptr);
    stream() = *session()->make_stream();
    recorder.settings().copy = &copy;
  }
  recorded_machine(const recorded_machine&) = delete;
  recorded_machine& operator=(const recorded_machine&) = delete;
  ~recorded_machine() { EXPECT_TRUE(session()->destroy_stream(stream()).ok()); }

  [[nodiscard]] core::seams doors() const { return {kernel_, gpu_, device::make_host_driver()}; }
  [[nodiscard]] engine make_engine(const std::function<void(engine_options&)>& change = [](engine_options&) {}) const {
    engine_options options;
    options.cufile_library = stand_in_;
    change(options);
    auto made = core::make_engine(options, doors());
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *std::move(made);
  }
  // Nothing can be GPU-direct here, after all.
  void lose_nvidia_fs() { kernel_->show(nvidia_fs_version, folder_.file("nothing")); }

  // The context of the first GPU is current on every thread.
  void make_context_current() { gpu_->make_current(); }
  // How often the engines have asked for a context so far.
  [[nodiscard]] unsigned opened_contexts() const { return gpu_->opened() - 1; }

  void have_direct_descriptors_only() { kernel_->pretend_direct_only(); }

  recorder_library recorder;

 private:
  static device::session*& session() {
    static device::session* current = nullptr;
    return current;
  }
  static device::stream& stream() {
    static device::stream current = nullptr;
    return current;
  }
  static void copy(void* target, const void* source, std::size_t bytes) {
    constexpr std::size_t step = 128 << 10;
    for (std::size_t done = 0; done < bytes; done += step) {
      const auto copied = session()->copy_small(static_cast<std::byte*>(target) + done, static_cast<const std::byte*>(source) + done,
                                                std::min(step, bytes - done), stream());
      EXPECT_TRUE(copied.ok()) << copied.message();
    }
  }

  const std::string stand_in_;
  temp_dir folder_;
  std::shared_ptr<pretending_kernel> kernel_ = std::make_shared<pretending_kernel>();
  std::shared_ptr<pretended_gpu> gpu_ = std::make_shared<pretended_gpu>();
};

}  // namespace penstock::testing
