// Writes and reads a file in every possible way and reports what went wrong: all of it must work wherever a file can be opened, under any
// limits. Returns text instead of using GoogleTest, so that it can also run in a child process.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/engine.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "sys/kernel.hpp"

namespace penstock::testing {

// Empty: all is well. The file is made, and left with other content.
class round_trip {
 public:
  round_trip(engine& with, std::string path) : engine_(with), path_(std::move(path)) {}

  std::string run() {
    auto memory = engine_.allocate("host:0", bytes);
    if (!memory) return std::string(memory.error().message());
    device_ = memory->data();
    for (const bool direct : {false, true}) {
      for (const bool on_device : {false, true}) {
        if (auto wrong = write_and_read(direct, on_device); !wrong.empty()) {
          return fmt::format("{}, {}: {}", direct ? "direct" : "buffered", on_device ? "device" : "host", wrong);
        }
      }
    }
    return {};
  }

 private:
  static constexpr std::size_t bytes = (std::size_t{5} << 20) + 333;

  std::string write_and_read(bool direct, bool on_device) {
    ++seed_;
    open_options wanted;
    wanted.write = wanted.create = wanted.truncate = true;
    wanted.direct_writes = direct;
    auto opened = engine_.open(path_, wanted);
    if (!opened) return std::string(opened.error().message());
    if (auto wrong = write(*opened, on_device); !wrong.empty()) return wrong;
    if (auto synced = opened->sync(); !synced.ok()) return std::string(synced.message());
    if (auto wrong = compare_file(); !wrong.empty()) return wrong;
    for (const bool cold : {false, true}) {
      if (auto wrong = read(*opened, on_device, cold); !wrong.empty()) return (cold ? "cold: " : "hot: ") + wrong;
    }
    if (auto wrong = read_batch(*opened, on_device); !wrong.empty()) return "batch: " + wrong;
    return std::string(opened->close().message());
  }

  // In three parts, whose borders lie anywhere.
  std::string write(file& to, bool on_device) {
    const auto content = pattern::make(bytes, seed_);
    const auto* source = content.data();
    if (on_device) {
      if (auto copied = engine_.copy(device_, content.data(), bytes); !copied.ok()) return std::string(copied.message());
      source = static_cast<const std::byte*>(device_);
    }
    std::size_t at = 0;
    for (const std::size_t part : {std::size_t{70001}, std::size_t{3} << 20, bytes}) {
      const std::size_t length = std::min(part, bytes - at);
      const auto done = to.write(source + at, length, static_cast<std::int64_t>(at));
      if (!done.ok() || done.bytes_done != length) return fmt::format("wrote {} of {}: {}", done.bytes_done, length, done.error.message());
      at += length;
    }
    return {};
  }

  [[nodiscard]] std::string compare_file() const {
    const auto content = stored_bytes(path_);
    return compare(std::as_bytes(std::span(content)), 0, bytes);
  }

  [[nodiscard]] std::string compare(std::span<const std::byte> got, std::size_t offset, std::size_t expected) const {
    if (got.size() != expected) return fmt::format("{} bytes instead of {}", got.size(), expected);
    const auto wrong = pattern::first_difference(got, seed_, offset);
    return wrong ? fmt::format("the byte at {} is wrong", *wrong) : std::string();
  }

  std::string read(file& from, bool on_device, bool cold) {
    constexpr std::int64_t offset = 1234;
    if (cold) cool();
    std::vector<std::byte> got(bytes, std::byte{0xee});
    auto done = from.read(on_device ? device_ : got.data(), bytes, offset);  // past the end
    if (!done.ok()) return std::string(done.error.message());
    if (on_device && done.bytes_done > 0) {
      if (auto copied = engine_.copy(got.data(), device_, done.bytes_done); !copied.ok()) return std::string(copied.message());
    }
    got.resize(done.bytes_done);
    return compare(got, offset, bytes - offset);
  }

  // A hint: what stays in memory is read from there.
  void cool() const {
    const auto kernel = sys::make_kernel();
    const auto fd = kernel->open(path_, 0, 0);
    if (!fd) return;
    (void)kernel->drop_cache(*fd, 0, 0);
    (void)kernel->close(*fd);
  }

  std::string read_batch(file& from, bool on_device) {
    constexpr std::size_t count = 50;
    constexpr std::size_t apart = 100003;
    constexpr std::size_t length = 5000;
    cool();
    std::vector<std::byte> got(count * length);
    auto* target = on_device ? static_cast<std::byte*>(device_) : got.data();
    std::vector<io_request> requests;
    for (std::size_t i = 0; i < count; ++i) {
      requests.push_back({&from, target + i * length, length, static_cast<std::int64_t>(i * apart), false});
    }
    const auto outcomes = engine_.submit(requests).wait();
    if (on_device) {
      if (auto copied = engine_.copy(got.data(), device_, got.size()); !copied.ok()) return std::string(copied.message());
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (!outcomes[i].ok()) return std::string(outcomes[i].error.message());
      auto wrong = compare(std::span(got).subspan(i * length, outcomes[i].bytes_done), i * apart, length);
      if (!wrong.empty()) return wrong;
    }
    return {};
  }

  engine& engine_;
  const std::string path_;
  void* device_ = nullptr;
  std::uint64_t seed_ = 40;
};

}  // namespace penstock::testing
