// Does what gdsio_verify does: reads a file into device memory and compares it with a plain read. Does not write to any file. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/common/command.hpp"

namespace penstock::cli {

// The options of gdsio_verify.
struct device_check {
  std::string device;                 // -d
  std::uint64_t offset = 0;           // -o
  std::optional<std::uint64_t> size;  // -s: total of all requests; nullopt: to the end of the file
  unsigned requests = 1;              // -n
  std::uint64_t memory_offset = 0;    // -g
  bool register_memory = true;        // -b
};

// Returns the option that names the file.
CLI::Option* add_device_check_options(CLI::App& sub, std::string& file, device_check& wanted);
// Prints the same output as gdsio_verify; errors go to stderr. Returns the exit code.
int check_by_device(const engine& owner, const std::string& path, const device_check& wanted, const output_options& output);

}  // namespace penstock::cli
