// The timeouts and retry rules for one object. A value.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "penstock/options.hpp"
#include "penstock/remote_retries.hpp"
#include "remote/net/settings.hpp"

namespace penstock::source::remote {

[[nodiscard]] inline bool is_for_now(int status) noexcept {
  constexpr std::array usual{408, 429, 500, 502, 503, 504};
  return std::find(usual.begin(), usual.end(), status) != usual.end();
}

struct patience {
  unsigned attempts = 5;
  std::chrono::milliseconds answer_within{30000};
  std::chrono::milliseconds stall_after{20000};
  std::chrono::milliseconds question_within{60000};  // for a short request as a whole
  std::chrono::milliseconds first_pause{100};
  std::chrono::milliseconds most_pause{20000};
  bool draws_pauses = true;                       // random, from 0 to the pause; false: exactly the pause
  bool asks_again_what_took_long = false;         // also retry short requests after a timeout
  std::optional<std::vector<int>> asked_again{};  // statuses to retry; nullopt: those of is_for_now()
  std::shared_ptr<remote_retries> told{};
  std::function<bool()> stop_requested{};  // returns true if the calling operation was asked to stop; empty: never

  explicit patience(const network_settings& of)
      : attempts(of.attempts),
        answer_within(of.answer_within),
        stall_after(of.stall_after),
        first_pause(of.first_pause),
        most_pause(of.most_pause) {}
  patience(const network_settings& of, const remote_options& how);
  // Returns a copy for use after the calling operation has completed.
  [[nodiscard]] patience kept() const {
    auto made = *this;
    made.stop_requested = {};
    return made;
  }

  [[nodiscard]] bool is_worth_another_try(int status) const noexcept {
    if (!asked_again) return is_for_now(status);
    return std::find(asked_again->begin(), asked_again->end(), status) != asked_again->end();
  }
  // Returns the pause before the next attempt. drawn: a random number. asked_for: the pause that the server requested.
  [[nodiscard]] std::chrono::milliseconds pause_after(unsigned tries, unsigned drawn, std::chrono::milliseconds asked_for) const noexcept {
    const auto most = std::min<std::chrono::milliseconds>(first_pause * (1 << std::min(tries - 1, 16U)), most_pause);
    const auto own = draws_pauses ? std::chrono::milliseconds(drawn % static_cast<unsigned>(most.count() + 1)) : most;
    return std::max(own, std::min(asked_for, most_pause));
  }
  void tell(const remote_retry& one) const noexcept {
    if (told != nullptr) told->add(one);
  }
};

}  // namespace penstock::source::remote
