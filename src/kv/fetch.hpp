// The fetching of many values: finds them, says what is to be read, and looks at what was read. One thread at a time.
//
// Where another process writes, a value may be dropped, and its extent taken again, while it is read. So the index is looked at again
// afterwards: the record that drops it is there before the bytes change. What was dropped meanwhile is looked for and read once more.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kv/operations.hpp"
#include "kv/volume.hpp"
#include "penstock/engine.hpp"
#include "penstock/kv.hpp"

namespace penstock::kv {

class fetch {
 public:
  // results: one for each item; valid until this ends.
  fetch(const engine& with, volume& from, std::span<const item> items, bool checksums, std::span<key_result> results);
  fetch(const fetch&) = delete;
  fetch& operator=(const fetch&) = delete;
  ~fetch() { let_go(); }

  // Finds what is still to be fetched. False: nothing is, and all results are there.
  bool begin();
  // What is to be read then, as one batch.
  [[nodiscard]] std::span<const io_request> requests() const noexcept { return requests_; }
  // How that ended, one for each request.
  void finish(std::span<const io_result> outcomes);
  void fail_all(const status& why);

 private:
  struct reading {
    std::size_t index;  // of the key
    catalogue::entry* entry;
    std::size_t first_request;
    std::size_t requests;
  };
  void find(std::size_t index);
  void ask_in_file_order();
  [[nodiscard]] key_result look_at(const reading& read, std::span<const io_result> outcomes) const;
  [[nodiscard]] bool is_gone(const reading& read) const;
  void let_go() noexcept;

  const engine& engine_;
  volume& from_;
  const bool checksums_;
  std::vector<key_part> parts_;
  std::span<key_result> results_;
  std::vector<std::size_t> wanted_;  // keys whose results are not there
  std::vector<reading> readings_;
  std::vector<io_request> requests_;
  unsigned rounds_ = 0;
};

}  // namespace penstock::kv
