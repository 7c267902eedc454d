// One blocking read of a file that was declared immutable: served from what was read ahead, where it goes on from the last ones. What is
// not to be had there goes its usual way, and so are errors told by the usual way only.
#pragma once

#include <optional>
#include <string>

#include "core/request/admission.hpp"

namespace penstock::core {

// For the thread that calls.
class ahead_call {
 public:
  // Of any request; of most it does nothing. The options outlive it.
  ahead_call(runtime& with, const admission& admitted, const io_options& options);
  ahead_call(const ahead_call&) = delete;
  ahead_call& operator=(const ahead_call&) = delete;
  ~ahead_call() = default;

  // The outcome, where it could be served; it has been counted as a piece.
  std::optional<io_result> serve(const admission& admitted);
  // The call has gone its usual way, and well.
  void passed() noexcept;

  // Why such reads of this file are not served; nothing where they are, once some have come in order.
  static std::optional<std::string> refuses(runtime& with, file_core& file, const staging::place& place, const io_options& options);

 private:
  static bool suits(runtime& with, const staging::place& place, const io_options& options);
  std::optional<io_result> copy(std::uint64_t length);

  runtime& with_;
  file_core* file_ = nullptr;  // null: it does nothing
  file_use use_;
  const io_options& options_;
  staging::place place_;
  transfer what_;
};

}  // namespace penstock::core
