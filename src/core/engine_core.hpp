// The engine. Owns the resources that its requests use, and one mount per file system. Created by make_engine; destroyed with its last
// handle, file, buffer or operation.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/file_core.hpp"
#include "core/mount.hpp"
#include "core/resident.hpp"
#include "core/runtime.hpp"
#include "penstock/engine.hpp"

namespace penstock::core {

// resident is the first base, so that the engine is listed until its last thread has ended.
class engine_core final : public resident, public runtime {
 public:
  static result<std::shared_ptr<engine_core>> make(const engine_options& options, seams doors);
  // Opens a local file by its path, or an object on a server by its URL.
  result<std::shared_ptr<file_core>> open(const std::string& path, const open_options& options);
  result<std::shared_ptr<file_core>> open_remote(const std::string& url, const remote_options& how, const open_options& options);
  result<std::shared_ptr<file_core>> adopt(int descriptor, const adopt_options& options, std::string not_direct);
  // Makes a file from any source.
  std::shared_ptr<file_core> open(std::unique_ptr<source::source> from, const open_options& options = {}, std::string not_direct = {});
  // See engine::trim().
  std::size_t trim();
  answer tell() override;
  // See engine::requests().
  [[nodiscard]] std::vector<request_info> under_way();
  // See engine::prepare().
  void prepare() noexcept;
  // See detail::await_preparation().
  void await_preparation() noexcept;
  [[nodiscard]] std::string obstacle() const override;
  status rest(deadline_clock::time_point until) override;
  void wake() noexcept override;
  // See engine::summary(), engine::advice() and engine_options::log_summary. log_summary() prints once, and never in a forked child.
  [[nodiscard]] std::string summary();
  [[nodiscard]] std::vector<penstock::advice> advice() const;
  void log_summary() noexcept;

 private:
  engine_core(const engine_options& options, seams doors) : runtime(options, std::move(doors)) {}
  ~engine_core() override;
  static void destroy(engine_core* core);
  // The mount for a file system. A block device has its own mount.
  mount& mount_of(std::uint64_t device);

  std::atomic<bool> logged_{false};
  std::mutex lock_;  // guards mounts_
  std::vector<std::unique_ptr<mount>> mounts_;
  std::mutex preparing_;  // guards preparer_
  std::thread preparer_;  // exits by itself
  std::atomic<bool> is_preparing_{false};
};

// Makes a public engine on the given kernel and drivers, so that tests can inject failures.
result<engine> make_engine(const engine_options& options, seams doors);
// Makes a public file from any source, as engine::open does from a local file.
result<file> open_source(const engine& with, std::unique_ptr<source::source> from);
// The real kernel and drivers, as specified by the options.
seams real_seams(const engine_options& options);

}  // namespace penstock::core
