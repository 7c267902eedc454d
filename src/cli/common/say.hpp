// Everything that the command says to people goes out here. What others have named or written (files, tensors, processes, the words of an
// error) may hold what a terminal obeys: it is made printable, also where the output is no terminal, since logs are read on one. The URLs
// in it are shown without what gives access: queries, user names and passwords. On a terminal, lines that are wider than it are broken
// between words. One thread at a time for each stream.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "base/output.hpp"
#include "base/printable.hpp"
#include "base/shown_urls.hpp"

namespace penstock::cli {

// Text of ours: colours, or lines of which each part has been made printable before.
struct as_is {
  std::string_view text;
};

// How many columns the terminal has; 0 where the stream is none. Asked each time: the user may resize it.
std::size_t columns_of(std::FILE* stream);

// Breaks lines that are wider than that between words; what follows is indented as the line itself is, and by hang columns more. A word is
// never broken. 0 columns: as it is.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t hang);

// How many columns of a terminal the text takes: characters, without escape sequences.
std::size_t width_of(std::string_view text);

// Whether stdout is a terminal that has colours, and the user wants them (https://no-color.org).
bool has_colour();

// Whether the user's locale is UTF-8, by LC_ALL, LC_CTYPE and LANG: only then are block characters printed.
bool is_utf8_locale();

// Exactly these bytes, for programs: JSON, lists of checksums, pages.
void put_exactly(std::string_view text);

// --- how say() and complain() are made

void put_lines(std::string_view text, std::size_t hang);
void put_error_lines(std::string_view text, std::size_t hang);

template <class Argument>
auto shown(const Argument& argument) {
  if constexpr (std::is_same_v<Argument, as_is>) {
    return argument.text;
  } else if constexpr (std::is_convertible_v<const Argument&, std::string_view>) {
    return printable_text(without_url_secrets(argument));
  } else {
    static_assert(std::is_arithmetic_v<Argument>, "text is passed as text, so that it is made printable");
    return argument;
  }
}
template <class Argument>
using shown_as = decltype(shown(std::declval<const std::remove_cvref_t<Argument>&>()));

template <class... Arguments>
std::string in_words(fmt::format_string<shown_as<Arguments>...> format, const Arguments&... arguments) {
  const std::tuple values{shown(arguments)...};
  return std::apply([&](const auto&... each) { return fmt::vformat(format, fmt::make_format_args(each...)); }, values);
}

// --- what the commands call, with words for format strings and the text of others for arguments

// To stdout. Throws output_failure, as put_exactly() does; main says so.
template <class... Arguments>
void say(fmt::format_string<shown_as<Arguments>...> format, const Arguments&... arguments) {
  put_lines(in_words<Arguments...>(format, arguments...), 2);
}
// The same; lines that must be broken go on this many columns further to the right than they begin.
template <class... Arguments>
void say_hanging(std::size_t hang, fmt::format_string<shown_as<Arguments>...> format, const Arguments&... arguments) {
  put_lines(in_words<Arguments...>(format, arguments...), hang);
}
// To stderr. What cannot be written is dropped.
template <class... Arguments>
void complain(fmt::format_string<shown_as<Arguments>...> format, const Arguments&... arguments) {
  put_error_lines(in_words<Arguments...>(format, arguments...), 2);
}

}  // namespace penstock::cli
