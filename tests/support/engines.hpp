// Engines that use only the host device, and files opened with them. Errors fail the test.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "penstock/engine.hpp"

namespace penstock::testing {

// lanes: 0 for the default.
inline engine_options without_cuda(unsigned lanes = 0) {
  engine_options options;
  options.use_cuda = false;
  options.lanes = lanes;
  return options;
}

inline engine made_engine(const engine_options& options) {
  auto made = engine::create(options);
  EXPECT_TRUE(made.ok()) << made.error().message();
  return *std::move(made);
}

// Returns a closed file if opening fails.
inline file opened_file(const engine& with, const std::string& path, const open_options& options = {.read = true, .write = true}) {
  auto opened = with.open(path, options);
  EXPECT_TRUE(opened.ok()) << opened.error().message();
  return opened.ok() ? *std::move(opened) : file();
}

}  // namespace penstock::testing
