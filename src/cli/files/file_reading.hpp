// Reads whole files through an engine, several pieces ahead, and compares two files. One thread per call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "penstock/penstock.hpp"

namespace penstock::cli {

// Called with the bytes read so far. If it returns true, the read fails with errc::cancelled. May be empty.
using reading_progress = std::function<bool(std::uint64_t done_bytes)>;

// Passes the bytes of the file to `take`, in order. Errors: those of opening and reading; io if the file was truncated while being read;
// cancelled.
status read_in_order(const engine& owner, const std::string& path, const std::function<void(std::span<const std::byte>)>& take,
                     const reading_progress& progress = {});

struct file_difference {
  std::uint64_t offset = 0;     // first byte that differs; if one file is a prefix of the other, the size of the shorter one
  std::uint64_t sizes[2] = {};  // sizes of both files
};
// Returns nullopt if the files are equal. Errors: as above.
result<std::optional<file_difference>> first_difference(const engine& owner, const std::string& one, const std::string& other,
                                                        const reading_progress& progress = {});

}  // namespace penstock::cli
