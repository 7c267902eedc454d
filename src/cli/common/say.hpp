// All output of the command for people. Text from outside (names of files, tensors and processes, error messages) may contain terminal
// control sequences, so it is made printable, even if the output is not a terminal, because logs are read on terminals. URLs are shown
// without queries, user names and passwords. On a terminal, long lines are wrapped between words. One thread at a time for each stream.
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

// Trusted text: colours, or lines whose parts have already been made printable.
struct as_is {
  std::string_view text;
};

// Returns the width of the terminal in columns; 0 if the stream is not a terminal. Queried on each call, because the user may resize it.
std::size_t columns_of(std::FILE* stream);

// Wraps lines longer than this between words. Continuation lines are indented like the line itself plus hang columns. Never splits a word.
// 0 columns: returns the text unchanged.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t hang);

// Returns the width of the text on a terminal, in columns: its characters without escape sequences.
std::size_t width_of(std::string_view text);

// Returns true if stdout is a terminal with colours and the user has not disabled them (https://no-color.org).
bool has_colour();

// Returns true if the locale is UTF-8, according to LC_ALL, LC_CTYPE and LANG. Block characters are printed only then.
bool is_utf8_locale();

// Writes exactly these bytes, for programs: JSON, lists of checksums, pages.
void put_exactly(std::string_view text);

// --- implementation of say() and complain()

void put_lines(std::string_view text, std::size_t hang);
void put_error_lines(std::string_view text, std::size_t hang);

template <class Argument>
auto shown(const Argument& argument) {
  if constexpr (std::is_same_v<Argument, as_is>) {
    return argument.text;
  } else if constexpr (std::is_convertible_v<const Argument&, std::string_view>) {
    return printable_text(without_url_secrets(argument));
  } else {
    static_assert(std::is_arithmetic_v<Argument>, "pass text as text, so that it is made printable");
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

// --- for commands: format strings are trusted, arguments may be untrusted text

// Prints to stdout. Throws output_failure, like put_exactly(); main reports it.
template <class... Arguments>
void say(fmt::format_string<shown_as<Arguments>...> format, const Arguments&... arguments) {
  put_lines(in_words<Arguments...>(format, arguments...), 2);
}
// The same, but continuation lines are indented hang columns further than the line.
template <class... Arguments>
void say_hanging(std::size_t hang, fmt::format_string<shown_as<Arguments>...> format, const Arguments&... arguments) {
  put_lines(in_words<Arguments...>(format, arguments...), hang);
}
// Prints to stderr. Ignores write errors.
template <class... Arguments>
void complain(fmt::format_string<shown_as<Arguments>...> format, const Arguments&... arguments) {
  put_error_lines(in_words<Arguments...>(format, arguments...), 2);
}

}  // namespace penstock::cli
