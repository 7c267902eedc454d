// Reading whole files with the lanes of an engine, several pieces ahead; comparing two. One thread per call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "penstock/penstock.hpp"

namespace penstock::cli {

// Of what was read so far; true ends it with errc::cancelled. May be empty.
using reading_progress = std::function<bool(std::uint64_t done_bytes)>;

// Hands the bytes of the file to `take`, in order. Errors: those of opening and reading; io where the file became shorter; cancelled.
status read_in_order(const engine& owner, const std::string& path, const std::function<void(std::span<const std::byte>)>& take,
                     const reading_progress& progress = {});

struct file_difference {
  std::uint64_t offset = 0;     // of the first byte that is not the same in both; the shorter one's size where it ends there
  std::uint64_t sizes[2] = {};  // of both
};
// None where both hold the same. Errors: as above.
result<std::optional<file_difference>> first_difference(const engine& owner, const std::string& one, const std::string& other,
                                                        const reading_progress& progress = {});

}  // namespace penstock::cli
