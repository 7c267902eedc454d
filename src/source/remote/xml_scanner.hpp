// Reads the XML that S3 and STS answer with, element by element: names, and the text of elements that have no others in them. Attributes,
// comments and instructions are passed over; a DOCTYPE, which could define entities, is refused. Takes no more memory than the text. One
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace penstock::source::remote {

enum class xml_event : unsigned char {
  begin,   // of an element
  end,     // of the one begun last
  done,    // all that was begun has ended
  broken,  // it is no XML, or is nested too deep, or ends too early
};

class xml_scanner {
 public:
  static constexpr std::size_t most_depth = 16;

  explicit xml_scanner(std::string_view text) : rest_(text) {}

  // After `done` and `broken`, the same again.
  xml_event next();
  // Of the element that began or ended, without a prefix. It points into the text.
  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  // At an end: the text of an element without others in it, its entities decoded; of any other, nothing. Valid until the next event.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  // How many elements are open: 1 at the beginning of the outermost one, and at its end.
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
  bool just_ended_ = false;  // the event before was an end, which counts as open until the next
  bool is_leaf_ = false;     // nothing has begun in the innermost element
  bool self_closed_ = false;
  bool has_root_ = false;
  bool is_broken_ = false;
  std::string_view name_;
  std::string text_;
};

}  // namespace penstock::source::remote
