// What the tests of drivers share: a driver by name, pinned memory, device memory and streams that give themselves back, and short ways to
// move bytes. Failures of set-up are reported through GoogleTest.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/device.hpp"

namespace penstock::testing {

#define PENSTOCK_EXPECT_OK(expression) /* the message of a status that is not ok */ \
  do {                                                                              \
    const penstock::status outcome = (expression);                                  \
    EXPECT_TRUE(outcome.ok()) << outcome.message();                                 \
  } while (false)

inline std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
  std::vector<std::byte> content(count);
  std::minstd_rand random(seed);
  for (auto& each : content) each = static_cast<std::byte>(random() >> 8);
  return content;
}

// A value of a result; a failure of the test, and a default, where there is none.
template <class T>
T value_of(result<T> from) {
  EXPECT_TRUE(from.ok()) << from.error().message();
  return from.ok() ? *from : T{};
}

// Pinned host memory, page-aligned.
class pinned_memory {
 public:
  pinned_memory(device::session& session, std::size_t bytes) : session_(session), bytes_(bytes) {
    void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    data_ = static_cast<std::byte*>(mapped);
    PENSTOCK_EXPECT_OK(session_.pin(data_, bytes_, false));
  }
  pinned_memory(const pinned_memory&) = delete;
  pinned_memory& operator=(const pinned_memory&) = delete;
  ~pinned_memory() {
    PENSTOCK_EXPECT_OK(session_.unpin(data_));
    ::munmap(data_, bytes_);
  }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  void fill(std::byte value) { std::memset(data_, static_cast<int>(value), bytes_); }
  void fill(const std::vector<std::byte>& content, std::size_t at = 0) { std::memcpy(data_ + at, content.data(), content.size()); }
  [[nodiscard]] bool holds(const std::vector<std::byte>& content, std::size_t at = 0) const {
    return std::memcmp(data_ + at, content.data(), content.size()) == 0;
  }

 private:
  device::session& session_;
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

class device_memory {
 public:
  device_memory(device::session& session, std::size_t bytes)
      : session_(session), data_(static_cast<std::byte*>(value_of(session.allocate(bytes)))) {}
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  ~device_memory() { PENSTOCK_EXPECT_OK(session_.release(data_)); }
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  device::session& session_;
  std::byte* data_;
};

// A stream, made and destroyed.
class scoped_stream {
 public:
  explicit scoped_stream(device::session& session) : session_(session), handle_(value_of(session.make_stream())) {}
  scoped_stream(const scoped_stream&) = delete;
  scoped_stream& operator=(const scoped_stream&) = delete;
  ~scoped_stream() { PENSTOCK_EXPECT_OK(session_.destroy_stream(handle_)); }
  operator device::stream() const { return handle_; }  // NOLINT(google-explicit-constructor)

 private:
  device::session& session_;
  device::stream handle_;
};

// Holds a stream until open().
class stream_gate {
 public:
  explicit stream_gate(device::session& session) : memory_(session, 4096) { memory_.fill(std::byte{0}); }
  status close(device::session& session, device::stream stream) {
    return session.wait_value(stream, reinterpret_cast<std::uint32_t*>(memory_.data()), 1);
  }
  void shut() { memory_.fill(std::byte{0}); }
  void open() { std::atomic_ref(*reinterpret_cast<std::uint32_t*>(memory_.data())).store(1, std::memory_order_release); }

 private:
  pinned_memory memory_;
};

class scoped_event {
 public:
  explicit scoped_event(device::session& session) : session_(session), handle_(value_of(session.make_event())) {}
  scoped_event(const scoped_event&) = delete;
  scoped_event& operator=(const scoped_event&) = delete;
  ~scoped_event() { PENSTOCK_EXPECT_OK(session_.destroy_event(handle_)); }
  operator device::event() const { return handle_; }  // NOLINT(google-explicit-constructor)

 private:
  device::session& session_;
  device::event handle_;
};

}  // namespace penstock::testing
