// The messages between the two ends of a pipe, as bytes. Everything from the peer is checked: every length against a limit and against the
// bytes that have arrived. A violation closes the pipe with errc::io and a message that describes the violation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "channel/channel.hpp"
#include "penstock/status.hpp"
#include "sys/secret.hpp"

namespace penstock::channel {

inline constexpr std::uint32_t wire_version = 8;

enum class frame_kind : std::uint32_t {
  hello = 1,     // body: hello. Each end's first frame; the end that connected sends first
  reach,         // body: the names of the channels over which the sender of this frame can receive, and why it cannot use the others
  announcement,  // message: its number. Body: announcement. code: 0, or set by a channel that pushes its tensors
  taken,         // message: it was received (body: over which channels), or code and body: why it will not be
  withdrawn,     // message: it will not be sent. code and body: why
  challenge,     // before the greeting, if a secret is set. Body: 32 random bytes
  proof,         // as above, once both challenges are known. Body: proof of the secret
  refused,       // instead of a greeting. Body: why the pipe is closed
  credit,        // code: number of announcements that the user has received; part: their bytes
  of_channel,    // a message between a channel's two carriers. See kind_of_channel()
};

// Returns the kind of a frame that belongs to a channel. number: the channel's index in the sender's list of channels over which it can
// receive (reach). own: chosen by the channel.
constexpr std::uint32_t kind_of_channel(std::uint8_t number, std::uint8_t own) noexcept {
  return static_cast<std::uint32_t>(frame_kind::of_channel) | std::uint32_t{number} << 8 | std::uint32_t{own} << 16;
}
constexpr frame_kind kind_of_frame(std::uint32_t kind) noexcept {
  const bool of_channel = (kind & 0xff) == static_cast<std::uint32_t>(frame_kind::of_channel) && kind >> 24 == 0;
  return static_cast<frame_kind>(of_channel || kind <= 0xff ? kind & 0xff : 0);
}
constexpr std::uint8_t channel_of_frame(std::uint32_t kind) noexcept { return static_cast<std::uint8_t>(kind >> 8); }
constexpr std::uint8_t own_kind_of_frame(std::uint32_t kind) noexcept { return static_cast<std::uint8_t>(kind >> 16); }

struct limits {
  static constexpr std::uint64_t greeting_bytes = 4096;  // from an unauthenticated peer
  static constexpr std::uint64_t words_bytes = 1024;     // of reported text from the peer; the rest is truncated
  static constexpr std::uint64_t text_bytes = 64 * 1024;
  static constexpr std::uint64_t metadata_bytes = std::uint64_t{1} << 20;
  static constexpr std::uint64_t payload_bytes = std::uint64_t{64} << 20;  // per message
  static constexpr std::uint64_t device_bytes = 64;                        // per device name
  static constexpr std::uint64_t handle_bytes = 128;                       // per memory handle
  static constexpr std::uint64_t line_bytes = 16 * 1024;                   // per line: its address and device
  static constexpr std::uint64_t reason_bytes = 512;                       // per reason why memory is not shared
  static constexpr std::uint64_t posted_bytes = std::uint64_t{1} << 20;    // per set of push targets
  static constexpr std::uint64_t parts = 65'536;                           // payloads per message, and tensors per message
  static constexpr std::uint64_t announcement_bytes = payload_bytes + (std::uint64_t{16} << 20);
  static constexpr std::uint64_t tensor_bytes = std::uint64_t{1} << 48;
  static constexpr std::uint64_t piece_bytes = std::uint64_t{4} << 20;  // per piece of a tensor; the last piece may be shorter
  static constexpr unsigned connections = 16;                           // per pipe
  // Limits on the messages that one end may announce before the peer's user receives them; a single message may be larger.
  static constexpr std::uint32_t announced_messages = 64;
  static constexpr std::uint64_t announced_bytes = std::uint64_t{16} << 20;
};

struct hello {
  std::uint32_t version = wire_version;
  identity who;
  // From the end that connected: the size of the shared memory offered for all later frames; its descriptor is sent with this. In the
  // reply: the same size if accepted, or 0.
  std::uint64_t ring_bytes = 0;
};

// The port for further connections (at the address of the pipe's own connection), and a token for each.
struct stripe_offer {
  std::uint16_t port = 0;
  std::vector<sys::digest> tokens;
};

struct reached_channel {
  std::string name;
  std::string refusal;  // empty: it can be used
};

// A part of a tensor and the device memory that contains it, for a process that maps it (device::shared_memory).
struct shared_part {
  std::string handle;
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;  // in the mapped memory
  std::uint64_t length = 0;
  bool passed = false;  // a descriptor for it has been passed
};

struct tensor_facts {
  std::uint64_t length = 0;
  std::uint64_t address = 0;       // in the sender's memory
  bool in_line = false;            // its bytes follow the payloads
  std::string device;              // the sender's name for it ("cuda:0"); empty: host memory
  std::string target_device;       // the device requested by the sender, by the receiver's name for it; empty: any
  std::vector<shared_part> parts;  // how the receiver can map the memory; empty if it cannot
  std::string not_shared;          // why parts is empty
  std::string metadata;
};

// A fabric line for tensors of one of the peer's devices, by the peer's name for it (empty: host memory).
struct line_offer {
  std::string device;
  std::vector<std::byte> address;
};

// The part of a message that a channel has transferred.
struct carried {
  std::string channel;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

struct announcement {
  std::string metadata;
  // A word in the sender's memory holds this value as long as the tensors are unchanged since the message was sent. Bytes that were read or
  // copied are valid only if the word, read afterwards, still holds it.
  std::uint64_t guard_address = 0;
  std::uint64_t guard_value = 0;
  std::vector<std::uint64_t> payload_lengths;
  std::vector<std::string> payload_metadata;
  std::vector<tensor_facts> tensors;
  // Offset of the first payload in the body. The payloads are contiguous, followed by the tensors in the announcement.
  std::uint64_t bytes_before_payloads = 0;
};

// Returns true if this could be the name of a device: printable, without spaces, and no longer than limits::device_bytes. Also true for an
// empty name.
bool may_name_device(std::string_view name) noexcept;

std::vector<std::byte> encode(const hello& what);
result<hello> decode_hello(std::span<const std::byte> body);
std::vector<std::byte> encode(const stripe_offer& what);
result<stripe_offer> decode_stripe_offer(std::span<const std::byte> body);
std::vector<std::byte> encode(std::span<const reached_channel> what);
result<std::vector<reached_channel>> decode_reach(std::span<const std::byte> body);
std::vector<std::byte> encode(const line_offer& what);
result<line_offer> decode_line_offer(std::span<const std::byte> body);
std::vector<std::byte> encode_tag(std::uint64_t tag);
result<std::uint64_t> decode_tag(std::span<const std::byte> body);
std::vector<std::byte> encode(std::span<const carried> what);
result<std::vector<carried>> decode_carried(std::span<const std::byte> body);
// Encodes all but the payloads.
std::vector<std::byte> encode(const announcement& what);
result<announcement> decode_announcement(std::span<const std::byte> body);
std::vector<std::byte> encode_text(std::string_view text);
// Returns text that is safe to print, even if the input is malicious: without control characters, and no longer than limits::words_bytes.
std::string decode_text(std::span<const std::byte> body);
// Returns the error for a message that the peer must not send at this point.
status out_of_turn(std::string_view what);
// Convert between a status and its wire code.
std::uint32_t code_of(const status& why) noexcept;
status status_of(std::uint32_t code, std::span<const std::byte> text);

}  // namespace penstock::channel
