// Leave to write into memory of the receiver's: a word in memory that both ends have mapped. The receiver gives it, and the sender takes it
// before it writes; who was first, where one takes it and the other takes it back, needs no answer. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace penstock::channel {

class permit {
 public:
  static constexpr std::uint32_t count = 64;  // words of an end
  static constexpr std::uint32_t turns = 1U << 30;

  // turn: one of before says nothing of this. Below turns.
  permit(std::atomic<std::uint32_t>& word, std::uint32_t turn) noexcept : word_(&word), turn_(turn) {}

  // Of the receiver.
  void give() noexcept { word_->store(value(given)); }
  // False: the sender has taken it, and may write until it is used().
  [[nodiscard]] bool take_back() noexcept { return move(given, gone); }
  // Nothing is written by it any more.
  [[nodiscard]] bool used() const noexcept { return word_->load() == value(gone) || written(); }
  // All is there.
  [[nodiscard]] bool written() const noexcept { return word_->load() == value(done); }

  // Of the sender. False: it was taken back.
  [[nodiscard]] bool take() noexcept { return move(given, taken); }
  void use_up() noexcept { (void)move(taken, gone); }
  // What a device stores there, behind what it writes, for written().
  [[nodiscard]] std::uint32_t* word() const noexcept { return reinterpret_cast<std::uint32_t*>(word_); }
  [[nodiscard]] std::uint32_t value_of_written() const noexcept { return value(done); }

 private:
  enum state : std::uint32_t { gone, given, taken, done };
  [[nodiscard]] std::uint32_t value(state is) const noexcept { return turn_ << 2 | is; }
  bool move(state from, state to) noexcept {
    auto expected = value(from);
    return word_->compare_exchange_strong(expected, value(to));
  }

  std::atomic<std::uint32_t>* word_;
  std::uint32_t turn_;
};

}  // namespace penstock::channel
