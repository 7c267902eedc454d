// What tests of stores share: values that tell which they are, and stores over engines without GPUs. What goes wrong is a failure of the
// test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/kv.hpp"
#include "support/engines.hpp"
#include "support/pattern.hpp"
#include "support/temp_dir.hpp"

namespace penstock::kv {

using bytes = std::vector<std::byte>;

inline engine_options quiet_engine() {
  auto options = testing::without_cuda(2);
  options.use_board = false;
  return options;
}

inline std::string told(const status& outcome) { return std::string(to_string(outcome.code())) + ": " + std::string(outcome.message()); }

// A value that begins with its version, which tells all of its bytes and their number.
inline std::size_t length_of(std::uint64_t version) { return 8 + version * 7919 % 30'000; }
inline bytes value_of(std::uint64_t key, std::uint64_t version) {
  bytes made = testing::pattern::make(length_of(version), version * 1000 + key);
  std::memcpy(made.data(), &version, sizeof version);
  return made;
}
// Nothing: it is the value of no version.
inline std::optional<std::uint64_t> version_of(std::uint64_t key, const bytes& value) {
  std::uint64_t version = 0;
  if (value.size() < sizeof version) return std::nullopt;
  std::memcpy(&version, value.data(), sizeof version);
  return value.size() == length_of(version) && value == value_of(key, version) ? std::optional(version) : std::nullopt;
}

inline std::string key_of(std::uint64_t number) { return "key-" + std::to_string(number); }

inline store made_store(const engine& with, const std::string& folder, const store_options& options = {.capacity_bytes = 1 << 20}) {
  auto made = store::open(with, folder, options);
  EXPECT_TRUE(made.ok()) << told(made.error());
  return *std::move(made);
}

inline key_result put_one(const store& to, const std::string& key, bytes& value) {
  const memory_piece piece{value.data(), value.size()};
  return to.put({{key, std::span(&piece, 1)}})[0];
}

inline key_result get_one(const store& from, const std::string& key, bytes& value) {
  const memory_piece piece{value.data(), value.size()};
  return from.get({{key, std::span(&piece, 1)}})[0];
}

// The value, or nothing where it is absent. Values of other sizes than sizes() tells, and errors, are failures.
inline std::optional<bytes> fetched(const store& from, const std::string& key) {
  const std::string_view name = key;
  const auto size = from.sizes(std::span(&name, 1))[0];
  EXPECT_NE(size.ended, outcome::failed) << told(size.error);
  if (size.ended != outcome::done) return std::nullopt;
  bytes value(size.bytes);
  const auto got = get_one(from, key, value);
  EXPECT_NE(got.ended, outcome::failed) << told(got.error);
  return got.ended == outcome::done ? std::optional(std::move(value)) : std::nullopt;
}

inline bool there(const store& in, std::string_view key) {
  auto found = in.exists(std::span(&key, 1));
  EXPECT_TRUE(found.ok()) << told(found.error());
  return found.ok() && (*found)[0];
}

inline key_result drop_one(const store& from, std::string_view key) { return from.drop(std::span(&key, 1))[0]; }

}  // namespace penstock::kv
