#include "remote/net/xml_scanner.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "base/utf8.hpp"

namespace penstock::source::remote {

namespace {

bool is_xml_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

std::string_view without_prefix(std::string_view name) {
  const auto colon = name.rfind(':');
  return colon == std::string_view::npos ? name : name.substr(colon + 1);
}

// Decodes "#65" or "#x41". Returns false if the reference is not a valid character.
bool append_numbered(std::string_view reference, std::string& to) {
  const bool is_hex = reference.starts_with("#x");
  reference.remove_prefix(is_hex ? 2 : 1);
  std::uint32_t code = 0;
  const auto [end, problem] = std::from_chars(reference.data(), reference.data() + reference.size(), code, is_hex ? 16 : 10);
  if (problem != std::errc() || end != reference.data() + reference.size()) return false;
  if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
  append_utf8(code, to);
  return true;
}

}  // namespace

xml_event xml_scanner::next() {
  if (is_broken_) return xml_event::broken;
  if (just_ended_) {
    just_ended_ = false;
    --depth_;
    text_.clear();
  }
  if (self_closed_) {
    self_closed_ = false;
    just_ended_ = true;
    return xml_event::end;
  }
  while (!rest_.empty()) {
    if (rest_.front() != '<') {
      if (!take_text()) return break_off();
    } else if (rest_.starts_with("<?")) {
      if (!pass_over("?>")) return break_off();
    } else if (rest_.starts_with("<!--")) {
      if (!pass_over("-->")) return break_off();
    } else {
      return rest_.starts_with("</") ? take_end() : take_begin();
    }
  }
  return depth_ == 0 && has_root_ ? xml_event::done : break_off();
}

xml_event xml_scanner::break_off() {
  is_broken_ = true;
  text_.clear();
  return xml_event::broken;
}

bool xml_scanner::pass_over(std::string_view closing) {
  const auto at = rest_.find(closing, 2);
  if (at == std::string_view::npos) return false;
  rest_.remove_prefix(at + closing.size());
  return true;
}

// Takes the text up to the next tag. Outside the root element only spaces and a byte order mark are allowed.
bool xml_scanner::take_text() {
  if (depth_ == 0) {
    if (!has_root_ && rest_.starts_with("\xef\xbb\xbf")) rest_.remove_prefix(3);
    while (!rest_.empty() && is_xml_space(rest_.front())) rest_.remove_prefix(1);
    return rest_.empty() || rest_.front() == '<';
  }
  while (!rest_.empty() && rest_.front() != '<') {
    const auto plain = rest_.substr(0, rest_.find_first_of("<&"));
    if (is_leaf_) text_ += plain;
    rest_.remove_prefix(plain.size());
    if (rest_.starts_with('&') && !take_entity()) return false;
  }
  return true;
}

bool xml_scanner::take_entity() {
  constexpr std::size_t most_entity_bytes = 12;
  const auto end = rest_.substr(0, most_entity_bytes).find(';');
  if (end == std::string_view::npos) return false;
  const auto entity = rest_.substr(1, end - 1);
  rest_.remove_prefix(end + 1);
  constexpr std::array<std::string_view, 5> names{"amp", "lt", "gt", "quot", "apos"};
  constexpr std::string_view meanings = "&<>\"'";
  const auto found = static_cast<std::size_t>(std::ranges::find(names, entity) - names.begin());
  std::string meaning;
  if (found < names.size()) {
    meaning.push_back(meanings[found]);
  } else if (!entity.starts_with('#') || !append_numbered(entity, meaning)) {
    return false;
  }
  if (is_leaf_) text_ += meaning;
  return true;
}

xml_event xml_scanner::take_end() {
  const auto close = rest_.find('>');
  if (close == std::string_view::npos || depth_ == 0) return break_off();
  auto name = rest_.substr(2, close - 2);
  while (!name.empty() && is_xml_space(name.back())) name.remove_suffix(1);
  if (name != open_[depth_ - 1]) return break_off();
  rest_.remove_prefix(close + 1);
  name_ = without_prefix(name);
  if (!is_leaf_) text_.clear();
  is_leaf_ = false;
  just_ended_ = true;
  return xml_event::end;
}

xml_event xml_scanner::take_begin() {
  // Quoted attribute values may contain '>'.
  std::size_t close = 1;
  for (char quote = 0; close < rest_.size() && (quote != 0 || rest_[close] != '>'); ++close) {
    const char c = rest_[close];
    if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    }
  }
  if (close >= rest_.size() || depth_ == most_depth || (depth_ == 0 && has_root_)) return break_off();
  auto tag = rest_.substr(1, close - 1);
  rest_.remove_prefix(close + 1);
  self_closed_ = tag.ends_with('/');
  if (self_closed_) tag.remove_suffix(1);
  const auto name = tag.substr(0, std::min(tag.size(), static_cast<std::size_t>(std::ranges::find_if(tag, is_xml_space) - tag.begin())));
  // Rejects DOCTYPE and CDATA, which neither S3 nor STS sends.
  if (name.empty() || name.front() == '!') return break_off();
  open_[depth_++] = name;
  has_root_ = true;
  is_leaf_ = !self_closed_;
  text_.clear();
  name_ = without_prefix(name);
  return xml_event::begin;
}

}  // namespace penstock::source::remote
