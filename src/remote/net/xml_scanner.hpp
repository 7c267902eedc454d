// Reads XML responses from S3 and STS element by element: names, and the text of elements without children. Skips attributes, comments and
// processing instructions; rejects a DOCTYPE, which could define entities. Needs no more memory than the text. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace penstock::source::remote {

enum class xml_event : unsigned char {
  begin,   // an element begins
  end,     // the innermost element ends
  done,    // all elements have ended
  broken,  // not XML, nested too deeply, or truncated
};

class xml_scanner {
 public:
  static constexpr std::size_t most_depth = 16;

  explicit xml_scanner(std::string_view text) : rest_(text) {}

  // Returns the next event. After `done` or `broken`, keeps returning the same event.
  xml_event next();
  // Returns the name of the element that began or ended, without prefix. Points into the text.
  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  // At the end of an element without children, returns its text with entities decoded; otherwise an empty text. Valid until the next event.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  // Returns the number of open elements: 1 at the start and at the end of the outermost one.
  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }

 private:
  xml_event break_off();
  bool pass_over(std::string_view closing);
  bool take_text();
  bool take_entity();
  xml_event take_end();
  xml_event take_begin();

  std::string_view rest_;
  std::array<std::string_view, most_depth> open_{};
  std::size_t depth_ = 0;
  bool just_ended_ = false;  // the last event was an end; its element counts as open until the next event
  bool is_leaf_ = false;     // the innermost element has no child so far
  bool self_closed_ = false;
  bool has_root_ = false;
  bool is_broken_ = false;
  std::string_view name_;
  std::string text_;
};

}  // namespace penstock::source::remote
