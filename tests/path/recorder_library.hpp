// The stand-in for libcufile, opened by a test: what it was asked, and what it shall do.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "path/cufile_recorder.hpp"

namespace penstock::testing {

// Opens a stand-in as a test does: the path opens the same image again.
class recorder_library {
 public:
  explicit recorder_library(const char* file_name) : image_(dlopen(file_name, RTLD_NOW | RTLD_LOCAL)) {
    if (image_ == nullptr) throw std::runtime_error(dlerror());
    function<void()>("recorder_reset")();
  }
  recorder_library(const recorder_library&) = delete;
  recorder_library& operator=(const recorder_library&) = delete;
  ~recorder_library() { dlclose(image_); }

  recorder_settings& settings() { return *function<recorder_settings*()>("recorder_change")(); }
  recorder_state state() { return function<recorder_state()>("recorder_look")(); }
  std::vector<recorded_call> calls() {
    std::vector<recorded_call> out(1000);
    out.resize(function<std::size_t(recorded_call*, std::size_t)>("recorder_calls")(out.data(), out.size()));
    return out;
  }
  std::vector<recorded_call> calls(cufile_call kind) {
    auto all = calls();
    all.erase(std::remove_if(all.begin(), all.end(), [&](const auto& one) { return one.call != kind; }), all.end());
    return all;
  }
  template <class Function>
  Function* function(const char* name) {
    return reinterpret_cast<Function*>(dlsym(image_, name));
  }

 private:
  void* image_;
};

}  // namespace penstock::testing
