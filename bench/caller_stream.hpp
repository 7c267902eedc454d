// A stream as an application owns it, for stream-ordered requests. One thread at a time.
#pragma once

#include <memory>
#include <string>

#include "penstock/status.hpp"

namespace penstock::bench {

class caller_stream {
 public:
  // Creates a stream on a GPU. On the host device, returns the default stream, because its other streams belong to the engine. Errors:
  // device.
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
