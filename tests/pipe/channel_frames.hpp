// Frames that belong to channels, as an end that speaks by hand says them and hears them.
#pragma once

#include <cstdint>

#include "channel/stripe_door.hpp"
#include "channel/wire.hpp"

namespace penstock::testing {

// number: of the channel, in the list that this end tells.
constexpr channel::frame_kind of_channel(std::uint8_t number, std::uint8_t own) {
  return static_cast<channel::frame_kind>(channel::kind_of_channel(number, own));
}
// As of the first channel in the other end's list, which has numbers of its own.
constexpr channel::frame_kind heard_kind(std::uint32_t kind) {
  if (channel::kind_of_frame(kind) != channel::frame_kind::of_channel) return static_cast<channel::frame_kind>(kind);
  return of_channel(0, channel::own_kind_of_frame(kind));
}

// The kinds of a channel's own frames: basic and cuda_basic, and mpt, which has further ones.
struct pieces_frames {
  static constexpr std::uint8_t wanted = 1, content = 2, unused = 3, inbox = 4, connections = 5, one_lost = 6;
};
// ucx and cuda_gdr.
struct lines_frames {
  static constexpr std::uint8_t offer = 1, ready = 2, over = 3, wanted = 4, sent = 5;
};
// cuda_ipc.
struct mapping_frames {
  static constexpr std::uint8_t posted = 1, pushed = 2;
};
// On a further connection.
constexpr auto joins_frame = static_cast<channel::frame_kind>(channel::stripe_frame::joins);
constexpr auto piece_frame = static_cast<channel::frame_kind>(channel::stripe_frame::piece);

}  // namespace penstock::testing
