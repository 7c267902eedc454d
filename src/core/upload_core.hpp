// An object being written: the upload, and the engine whose connections it uses. For one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/engine_core.hpp"
#include "remote/s3/upload.hpp"

namespace penstock::core {

class upload_core {
 public:
  static result<std::shared_ptr<upload_core>> begin(std::shared_ptr<engine_core> with, const std::string& url, const remote_options& how);
  upload_core(std::shared_ptr<engine_core> with, std::shared_ptr<source::remote::upload> begun, bool overwrites)
      : engine_(std::move(with)), upload_(std::move(begun)), overwrites_(overwrites) {}
  upload_core(const upload_core&) = delete;
  upload_core& operator=(const upload_core&) = delete;
  // Aborts the upload unless it was published. Files that are open for it can no longer be written.
  ~upload_core();

  [[nodiscard]] const std::string& name() const noexcept { return upload_->name(); }
  result<std::shared_ptr<file_core>> open(std::uint64_t bytes_per_second);
  status publish(bool replace);

 private:
  [[nodiscard]] status usable() const;

  const std::shared_ptr<engine_core> engine_;  // outlives the upload, which uses its network
  std::shared_ptr<source::remote::upload> upload_;
  const bool overwrites_;
};

}  // namespace penstock::core
