// A stream as a program has one, for requests in its order. One thread at a time.
#pragma once

#include <memory>
#include <string>

#include "penstock/status.hpp"

namespace penstock::bench {

class caller_stream {
 public:
  // Of a GPU a stream of its own. Of the host device, whose streams belong to the engine alone, the default one. Errors: device.
  static result<caller_stream> make(const std::string& device);
  caller_stream(caller_stream&&) noexcept;
  caller_stream& operator=(caller_stream&&) noexcept;
  ~caller_stream();
  [[nodiscard]] void* get() const;  // for stream_request::stream

 private:
  struct parts;
  explicit caller_stream(std::unique_ptr<parts> made);
  std::unique_ptr<parts> parts_;
};

}  // namespace penstock::bench
