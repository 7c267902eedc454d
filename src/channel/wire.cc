#include "channel/wire.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include <fmt/format.h>

#include "base/printable.hpp"

namespace penstock::channel {

namespace {

constexpr std::array<char, 8> magic{'p', 'e', 'n', 's', 't', 'o', 'c', 'k'};

class writer {
 public:
  writer() { out_.reserve(256); }  // enough for most messages
  template <class Number>
  void number(Number value) {
    static_assert(std::is_integral_v<Number>);
    const auto at = out_.size();
    out_.resize(at + sizeof(value));
    std::memcpy(out_.data() + at, &value, sizeof(value));
  }
  void text(std::string_view value) {
    number(static_cast<std::uint32_t>(value.size()));
    bytes(value.data(), value.size());
  }
  void bytes(const void* data, std::size_t size) {
    const auto* const from = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), from, from + size);
  }
  [[nodiscard]] std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

// After the first violation, all values read are zero or empty.
class reader {
 public:
  explicit reader(std::span<const std::byte> from) : from_(from) {}
  template <class Number>
  Number number() {
    Number value{};
    if (const auto* const data = take(sizeof(value)); data != nullptr) std::memcpy(&value, data, sizeof(value));
    return value;
  }
  std::string text(std::uint64_t most) {
    const auto size = number<std::uint32_t>();
    if (size > most) failed_ = true;
    const auto* const data = take(size);
    return data == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(data), size);
  }
  // Reads the number of items that follow. Each takes at least this many bytes.
  std::uint32_t count(std::uint64_t most, std::size_t least_bytes) {
    const auto value = number<std::uint32_t>();
    if (value > most || value > (from_.size() - at_) / least_bytes) failed_ = true;
    return failed_ ? 0 : value;
  }
  const std::byte* take(std::size_t size) {
    if (failed_ || size > from_.size() - at_) {
      failed_ = true;
      return nullptr;
    }
    at_ += size;
    return from_.data() + at_ - size;
  }
  void fail() noexcept { failed_ = true; }
  [[nodiscard]] bool failed() const noexcept { return failed_; }
  [[nodiscard]] std::size_t at() const noexcept { return at_; }
  [[nodiscard]] std::size_t left() const noexcept { return from_.size() - at_; }

 private:
  std::span<const std::byte> from_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

// Returns text from the peer for display: printable, and not too long.
std::string words(std::string_view told) {
  auto shown = printable_text(std::string(told.substr(0, limits::words_bytes)));
  return told.size() > limits::words_bytes ? shown + "..." : shown;
}

status malformed(std::string_view what) { return {errc::io, fmt::format("the peer sent a malformed {}", what)}; }

}  // namespace

bool may_name_device(std::string_view name) noexcept {
  return name.size() <= limits::device_bytes && std::all_of(name.begin(), name.end(), [](char each) { return each > ' ' && each < 127; });
}

std::vector<std::byte> encode(const hello& what) {
  writer out;
  out.bytes(magic.data(), magic.size());
  out.number(what.version);
  out.text(what.who.boot_id);
  out.number(what.who.process_token);
  out.number(what.who.pid);
  out.number(what.who.probe_address);
  out.number(what.who.connections);
  out.number(what.ring_bytes);
  return out.take();
}

result<hello> decode_hello(std::span<const std::byte> body) {
  reader in(body);
  const auto* const first = in.take(magic.size());
  if (first == nullptr || std::memcmp(first, magic.data(), magic.size()) != 0) {
    return status(errc::io, "the peer does not use Penstock's pipe protocol");
  }
  hello out;
  out.version = in.number<std::uint32_t>();
  if (out.version != wire_version) {
    return status(errc::unsupported,
                  fmt::format("the peer uses version {} of the pipe protocol, this process version {}", out.version, wire_version));
  }
  out.who.boot_id = in.text(limits::text_bytes);
  out.who.process_token = in.number<std::uint64_t>();
  out.who.pid = in.number<std::int64_t>();
  out.who.probe_address = in.number<std::uint64_t>();
  out.who.connections = in.number<std::uint32_t>();
  out.ring_bytes = in.number<std::uint64_t>();
  if (in.failed() || in.left() > 0) return malformed("greeting");
  return out;
}

std::vector<std::byte> encode(const stripe_offer& what) {
  writer out;
  out.number(what.port);
  out.number(static_cast<std::uint32_t>(what.tokens.size()));
  for (const auto& each : what.tokens) out.bytes(each.data(), each.size());
  return out.take();
}

result<stripe_offer> decode_stripe_offer(std::span<const std::byte> body) {
  reader in(body);
  stripe_offer out;
  out.port = in.number<std::uint16_t>();
  out.tokens.resize(in.count(limits::connections - 1, sizeof(sys::digest)));
  for (auto& each : out.tokens) {
    if (const auto* const data = in.take(each.size()); data != nullptr) std::memcpy(each.data(), data, each.size());
  }
  if (in.failed() || in.left() > 0 || out.port == 0 || out.tokens.empty()) return malformed("offer of further connections");
  return out;
}

std::vector<std::byte> encode(std::span<const reached_channel> what) {
  writer out;
  out.number(static_cast<std::uint32_t>(what.size()));
  for (const auto& each : what) {
    out.text(each.name);
    out.text(each.refusal);
  }
  return out.take();
}

result<std::vector<reached_channel>> decode_reach(std::span<const std::byte> body) {
  reader in(body);
  std::vector<reached_channel> out(in.count(256, 8));
  for (auto& each : out) {
    each.name = words(in.text(limits::text_bytes));
    each.refusal = words(in.text(limits::text_bytes));
  }
  if (in.failed() || in.left() > 0) return malformed("list of channels");
  return out;
}

std::vector<std::byte> encode(const line_offer& what) {
  writer out;
  out.text(what.device);
  out.bytes(what.address.data(), what.address.size());
  return out.take();
}

result<line_offer> decode_line_offer(std::span<const std::byte> body) {
  reader in(body);
  line_offer out;
  out.device = in.text(limits::device_bytes);
  if (in.failed() || in.left() == 0 || !may_name_device(out.device)) return malformed("line");
  const auto address = body.subspan(in.at());
  out.address.assign(address.begin(), address.end());
  return out;
}

std::vector<std::byte> encode_tag(std::uint64_t tag) {
  writer out;
  out.number(tag);
  return out.take();
}

result<std::uint64_t> decode_tag(std::span<const std::byte> body) {
  reader in(body);
  const auto tag = in.number<std::uint64_t>();
  if (in.failed() || in.left() > 0) return malformed("tag");
  return tag;
}

std::vector<std::byte> encode(std::span<const carried> what) {
  writer out;
  out.number(static_cast<std::uint32_t>(what.size()));
  for (const auto& each : what) {
    out.text(each.channel);
    out.number(each.tensors);
    out.number(each.bytes);
  }
  return out.take();
}

result<std::vector<carried>> decode_carried(std::span<const std::byte> body) {
  reader in(body);
  std::vector<carried> out(in.count(256, 20));
  for (auto& each : out) {
    each.channel = in.text(limits::text_bytes);
    each.tensors = in.number<std::uint64_t>();
    each.bytes = in.number<std::uint64_t>();
  }
  if (in.failed() || in.left() > 0) return malformed("receipt");
  return out;
}

std::vector<std::byte> encode(const announcement& what) {
  writer out;
  out.text(what.metadata);
  out.number(what.guard_address);
  out.number(what.guard_value);
  out.number(static_cast<std::uint32_t>(what.payload_lengths.size()));
  for (std::size_t i = 0; i < what.payload_lengths.size(); ++i) {
    out.number(what.payload_lengths[i]);
    out.text(what.payload_metadata[i]);
  }
  out.number(static_cast<std::uint32_t>(what.tensors.size()));
  for (const auto& each : what.tensors) {
    out.number(each.length);
    out.number(each.address);
    out.number(static_cast<std::uint8_t>(each.in_line));
    out.text(each.device);
    out.text(each.target_device);
    if (!each.device.empty()) {
      out.number(static_cast<std::uint32_t>(each.parts.size()));
      for (const auto& part : each.parts) {
        out.text(part.handle);
        out.number(part.generation);
        out.number(part.offset);
        out.number(part.length);
        out.number(static_cast<std::uint8_t>(part.passed));
      }
      out.text(std::string_view(each.not_shared).substr(0, limits::reason_bytes));
    }
    out.text(each.metadata);
  }
  return out.take();
}

namespace {

// Reads the parts. Together they must cover a tensor of this length, or there are none.
std::vector<shared_part> shared_parts_of(reader& in, std::uint64_t length) {
  std::vector<shared_part> out(in.count(limits::parts, 29));
  for (auto& each : out) {
    each.handle = in.text(limits::handle_bytes);
    each.generation = in.number<std::uint64_t>();
    each.offset = in.number<std::uint64_t>();
    each.length = in.number<std::uint64_t>();
    each.passed = in.number<std::uint8_t>() != 0;
    if (each.length > length || each.offset > limits::tensor_bytes) in.fail();
    if (in.failed()) return {};
    length -= each.length;
  }
  if (!out.empty() && length > 0) in.fail();
  return out;
}

}  // namespace

result<announcement> decode_announcement(std::span<const std::byte> body) {
  reader in(body);
  announcement out;
  out.metadata = in.text(limits::metadata_bytes);
  out.guard_address = in.number<std::uint64_t>();
  out.guard_value = in.number<std::uint64_t>();
  out.payload_lengths.resize(in.count(limits::parts, 12));
  out.payload_metadata.resize(out.payload_lengths.size());
  std::uint64_t behind = 0;
  const auto adds = [&](std::uint64_t length) {
    if (length > limits::announcement_bytes) in.fail();
    behind += in.failed() ? 0 : length;
  };
  for (std::size_t i = 0; i < out.payload_lengths.size() && !in.failed(); ++i) {
    out.payload_lengths[i] = in.number<std::uint64_t>();
    out.payload_metadata[i] = in.text(limits::metadata_bytes);
    adds(out.payload_lengths[i]);
  }
  out.tensors.resize(in.count(limits::parts, 29));
  for (auto& each : out.tensors) {
    each.length = in.number<std::uint64_t>();
    each.address = in.number<std::uint64_t>();
    each.in_line = in.number<std::uint8_t>() != 0;
    each.device = in.text(limits::device_bytes);
    each.target_device = in.text(limits::device_bytes);
    if (!may_name_device(each.device) || !may_name_device(each.target_device)) in.fail();
    if (!each.device.empty()) {
      each.parts = shared_parts_of(in, each.length);
      each.not_shared = words(in.text(limits::reason_bytes));
    }
    each.metadata = in.text(limits::metadata_bytes);
    if (each.length > limits::tensor_bytes) in.fail();
    if (each.in_line) adds(each.length);
    if (in.failed()) break;
  }
  out.bytes_before_payloads = in.at();
  if (in.failed() || in.left() != behind) return malformed("message");
  return out;
}

std::vector<std::byte> encode_text(std::string_view text) {
  writer out;
  text = text.substr(0, limits::text_bytes);
  out.bytes(text.data(), text.size());
  return out.take();
}

std::string decode_text(std::span<const std::byte> body) { return words({reinterpret_cast<const char*>(body.data()), body.size()}); }

status out_of_turn(std::string_view what) { return {errc::io, fmt::format("the peer sent {} out of turn", what)}; }

std::uint32_t code_of(const status& why) noexcept { return static_cast<std::uint32_t>(why.code()); }

status status_of(std::uint32_t code, std::span<const std::byte> text) {
  if (code == 0) return {};
  const auto known = code < static_cast<std::uint32_t>(errc_count) ? static_cast<errc>(code) : errc::internal;
  return {known, fmt::format("the peer: {}", decode_text(text))};
}

}  // namespace penstock::channel
