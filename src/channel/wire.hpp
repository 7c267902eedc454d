// What pipes say to each other, as bytes. Whatever comes from the other end is checked: every length against a limit and against what has
// arrived; what does not hold ends the pipe, with errc::io and the name of what is wrong.
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
  hello = 1,     // body: hello. The first frame of each end; who has connected speaks first
  reach,         // body: the names of the channels by which this end can receive, and why not by the others
  announcement,  // message: its number. Body: announcement. code: 0, or what a channel makes of it that pushes its tensors
  taken,         // message: it was received (body: by which channels), or code and body: why it will not be
  withdrawn,     // message: it will not be sent. code and body: why
  challenge,     // before the greeting, where the ends have a secret. Body: 32 bytes at random
  proof,         // likewise, once both challenges are there. Body: what only who knows the secret can make of them
  refused,       // instead of a greeting. Body: why this end speaks no further
  credit,        // code: so many announcements, part: of so many bytes, have gone to the user
  of_channel,    // what the two carriers of a channel say to each other. See kind_of_channel()
};

// The kind of a frame that belongs to a channel. number: of the channel, in the list by which the one who says it can receive (reach). own:
// what the channel makes of it.
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
  static constexpr std::uint64_t greeting_bytes = 4096;  // from whom nothing is known yet
  static constexpr std::uint64_t words_bytes = 1024;     // of what the other end says that is told on; the rest is cut off
  static constexpr std::uint64_t text_bytes = 64 * 1024;
  static constexpr std::uint64_t metadata_bytes = std::uint64_t{1} << 20;
  static constexpr std::uint64_t payload_bytes = std::uint64_t{64} << 20;  // of a message, together
  static constexpr std::uint64_t device_bytes = 64;                        // of a device's name
  static constexpr std::uint64_t handle_bytes = 128;                       // by which memory is mapped
  static constexpr std::uint64_t line_bytes = 16 * 1024;                   // of a line's address, with the device it is for
  static constexpr std::uint64_t reason_bytes = 512;                       // why there is none
  static constexpr std::uint64_t posted_bytes = std::uint64_t{1} << 20;    // of what tells where tensors may be pushed
  static constexpr std::uint64_t parts = 65'536;                           // payloads, and tensors, of a message
  static constexpr std::uint64_t announcement_bytes = payload_bytes + (std::uint64_t{16} << 20);
  static constexpr std::uint64_t tensor_bytes = std::uint64_t{1} << 48;
  static constexpr std::uint64_t piece_bytes = std::uint64_t{4} << 20;  // of a tensor that is sent; its last one may be shorter
  static constexpr unsigned connections = 16;                           // of a pipe
  // What one end announces before the other end's user has taken it; one message may be more.
  static constexpr std::uint32_t announced_messages = 64;
  static constexpr std::uint64_t announced_bytes = std::uint64_t{16} << 20;
};

struct hello {
  std::uint32_t version = wire_version;
  identity who;
  // Of who has connected: the size of the memory whose descriptor comes with this, through which all that follows could go. Of the other
  // end: the same, and it does; or 0.
  std::uint64_t ring_bytes = 0;
};

// Where further connections are waited for, at the address that the pipe's own leads to, and a token for each.
struct stripe_offer {
  std::uint16_t port = 0;
  std::vector<sys::digest> tokens;
};

struct reached_channel {
  std::string name;
  std::string refusal;  // empty: it can be used
};

// A part of a tensor, and the device's memory around it, for who maps that (device::shared_memory).
struct shared_part {
  std::string handle;
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;  // in what is mapped
  std::uint64_t length = 0;
  bool passed = false;  // a descriptor for it has come
};

struct tensor_facts {
  std::uint64_t length = 0;
  std::uint64_t address = 0;       // in the sender's memory
  bool in_line = false;            // its bytes lie behind the payloads
  std::string device;              // as the sender calls it ("cuda:0"); empty: host memory
  std::string target_device;       // where the sender would have it, as the receiver calls it; empty: anywhere
  std::vector<shared_part> parts;  // by which the receiver can map the memory; none: it cannot
  std::string not_shared;          // why there are none
  std::string metadata;
};

// A line over a fabric, for tensors of one device of the other end, as that calls it; or of its host (empty).
struct line_offer {
  std::string device;
  std::vector<std::byte> address;
};

// What a channel has carried of a message.
struct carried {
  std::string channel;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

struct announcement {
  std::string metadata;
  // A word of the sender's memory that has this value as long as its tensors are what they were when the message was sent. What is read
  // or copied counts if the word, read afterwards, still has it.
  std::uint64_t guard_address = 0;
  std::uint64_t guard_value = 0;
  std::vector<std::uint64_t> payload_lengths;
  std::vector<std::string> payload_metadata;
  std::vector<tensor_facts> tensors;
  // Of the body: where the payloads begin, one behind the other, and behind them the tensors that are in line.
  std::uint64_t bytes_before_payloads = 0;
};

// Whether this could name a device: printable, without spaces, and no longer than limits::device_bytes. Nothing does too.
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
// Without payloads.
std::vector<std::byte> encode(const announcement& what);
result<announcement> decode_announcement(std::span<const std::byte> body);
std::vector<std::byte> encode_text(std::string_view text);
// Such as can be shown, whatever has come: no character that a terminal obeys, and no more than limits::words_bytes.
std::string decode_text(std::span<const std::byte> body);
// What the other end has said when it must not.
status out_of_turn(std::string_view what);
// The status that another end told.
std::uint32_t code_of(const status& why) noexcept;
status status_of(std::uint32_t code, std::span<const std::byte> text);

}  // namespace penstock::channel
