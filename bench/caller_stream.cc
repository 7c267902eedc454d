#include "bench/caller_stream.hpp"

#include <fmt/format.h>

#include <charconv>

#include "device/device.hpp"
#include "device/owned.hpp"

namespace penstock::bench {

struct caller_stream::parts {
  std::shared_ptr<device::driver> driver;
  device::owned_stream stream;  // destroyed before the driver
};

caller_stream::caller_stream(std::unique_ptr<parts> made) : parts_(std::move(made)) {}
caller_stream::caller_stream(caller_stream&&) noexcept = default;
caller_stream& caller_stream::operator=(caller_stream&&) noexcept = default;
caller_stream::~caller_stream() = default;

void* caller_stream::get() const { return parts_->driver == nullptr ? nullptr : parts_->stream.get(); }

result<caller_stream> caller_stream::make(const std::string& device) {
  auto made = std::make_unique<parts>();
  constexpr std::string_view cuda = "cuda:";
  if (!device.starts_with(cuda)) return caller_stream(std::move(made));
  int ordinal = 0;
  std::from_chars(device.data() + cuda.size(), device.data() + device.size(), ordinal);
  made->driver = device::make_cuda_driver();
  auto session = made->driver->open(ordinal, nullptr);
  if (!session) return session.error();
  auto stream = device::owned_stream::make(**session);
  if (!stream) return stream.error();
  made->stream = *std::move(stream);
  return caller_stream(std::move(made));
}

}  // namespace penstock::bench
