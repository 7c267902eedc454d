// A server of objects, as a network knows it: its connections, what waits for them, and how many of them serve it best. What a network
// keeps of it is guarded by the network's lock.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "source/remote/fetch.hpp"
#include "source/remote/pace.hpp"
#include "source/remote/recent_times.hpp"
#include "source/remote/settings.hpp"
#include "source/remote/url.hpp"
#include "source/turnstile.hpp"
#include "staging/lanes.hpp"

namespace penstock::source::remote {

class line;

// One server: scheme, host and port.
class origin final {
 public:
  origin(url address, const network_settings& with);
  origin(const origin&) = delete;
  origin& operator=(const origin&) = delete;
  ~origin();
  [[nodiscard]] const url& place() const noexcept { return at_; }  // its path is that of whoever asked first
  // "https://host:port", and for messages "host:port".
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] const std::string& host() const noexcept { return host_; }
  // Fills under way that serve it best: those that its connections carry, and some that wait for one.
  [[nodiscard]] unsigned fills_wanted() const noexcept;
  [[nodiscard]] unsigned connections_wanted() const noexcept { return pace_.wanted(); }
  // Where the fills of all of its objects wait; made by the first.
  std::shared_ptr<turnstile> turns(staging::lanes& by, turnstile::share& of, std::shared_ptr<origin> self);

 private:
  friend class network;
  void carries_one_more() noexcept {
    if (carried_++ == 0) pace_.resumes();
  }
  static constexpr double most_tokens = 500;
  static constexpr unsigned most_dials = 4;  // at a time, so that one that does not answer leaves others some
  const url at_;
  const std::string address_;
  const std::string host_;
  std::mutex turns_lock_;  // guards turns_
  std::weak_ptr<turnstile> turns_;
  // --- with the network's lock
  fetch_list queue_;
  std::vector<line*> idle_;  // the last was used last
  unsigned lines_ = 0;
  unsigned dialing_ = 0;
  unsigned carried_ = 0;  // fetches
  double tokens_;         // for trying again: an outage is not multiplied
  pace pace_;
  recent_times times_;  // of whole pieces
  double hedges_ = 1;   // that may be: one in fifty pieces
};

}  // namespace penstock::source::remote
