// One open file: its descriptors, and how many requests use it. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "path/data_path.hpp"
#include "penstock/engine.hpp"
#include "sys/kernel.hpp"

namespace penstock::core {

class engine_core;

class file_core {
 public:
  static result<std::shared_ptr<file_core>> open(std::shared_ptr<engine_core> engine, const std::string& path, const open_options& options);
  static result<std::shared_ptr<file_core>> adopt(std::shared_ptr<engine_core> engine, int descriptor);
  file_core(const file_core&) = delete;
  file_core& operator=(const file_core&) = delete;
  ~file_core();

  // To be called before the file is used by a request, and end() after. An error names the file: closed, or not open for this.
  status begin(bool is_write);
  void end();

  // Both descriptors, as far as they can be had; the second kind is opened when first asked for.
  const path::file_view& view();
  [[nodiscard]] const path::file_view& view_if_open() const noexcept { return view_; }
  // Why there is no descriptor of that kind; ok when there is.
  [[nodiscard]] const status& cached_problem() const noexcept { return cached_problem_; }
  [[nodiscard]] const status& direct_problem() const noexcept { return direct_problem_; }

  [[nodiscard]] const sys::file_info& facts() const noexcept { return facts_; }
  [[nodiscard]] bool wants_direct_writes() const noexcept { return direct_writes_; }
  [[nodiscard]] const std::string& name() const noexcept { return view_.name; }
  [[nodiscard]] int any_descriptor() const noexcept { return view_.cached_fd >= 0 ? view_.cached_fd : view_.direct_fd; }
  [[nodiscard]] const std::shared_ptr<engine_core>& engine() const noexcept { return engine_; }

  status sync();
  [[nodiscard]] result<std::uint64_t> size();
  status close();

 private:
  file_core(std::shared_ptr<engine_core> engine, std::string name);
  status examine(int descriptor);
  void open_other_kind();

  std::shared_ptr<engine_core> engine_;
  path::file_view view_;
  sys::file_info facts_;
  status cached_problem_;
  status direct_problem_;
  int access_ = 0;  // O_RDONLY, O_WRONLY or O_RDWR
  bool direct_writes_ = false;
  bool owns_cached_ = false;
  bool owns_direct_ = false;
  std::once_flag other_kind_;
  std::atomic<std::uint64_t> in_flight_{0};
  std::atomic<bool> closed_{false};
  std::mutex lock_;  // guards waiting for in_flight_ to reach zero
  std::condition_variable quiet_;
};

}  // namespace penstock::core
