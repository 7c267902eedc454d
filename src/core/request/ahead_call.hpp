// One blocking read of a file that was declared immutable. It is served from the read-ahead if it continues the previous reads. Otherwise
// it uses its normal path; only that path reports errors.
#pragma once

#include <optional>
#include <string>

#include "core/request/admission.hpp"

namespace penstock::core {

// For the calling thread.
class ahead_call {
 public:
  // Accepts any request, but does nothing for most. options must outlive it.
  ahead_call(runtime& with, const admission& admitted, const io_options& options);
  ahead_call(const ahead_call&) = delete;
  ahead_call& operator=(const ahead_call&) = delete;
  ~ahead_call() = default;

  // Returns the outcome if the read could be served. The read has then been counted as a piece.
  std::optional<io_result> serve(const admission& admitted);
  // Called when the request has succeeded on its normal path.
  void passed() noexcept;

  // Returns why such reads of this file are not served, or nullopt if they are, after several sequential reads.
  static std::optional<std::string> refuses(runtime& with, file_core& file, const staging::place& place, const io_options& options);

 private:
  static bool suits(runtime& with, const staging::place& place, const io_options& options);
  std::optional<io_result> copy(std::uint64_t length);

  runtime& with_;
  file_core* file_ = nullptr;  // null: this object has no effect
  file_use use_;
  const io_options& options_;
  staging::place place_;
  transfer what_;
};

}  // namespace penstock::core
