// Valid words on a command line, and suggestions for misspelt ones. Free functions; thread-safe.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

// Returns the name that the user probably meant: one that begins with the word or differs from it in a few letters. Empty if no name is
// close.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);
// Returns "; did you mean X?" or an empty string.
std::string suggestion(std::string_view word, const std::vector<std::string>& names);

// Checks that the value of an option is one of these words; "auto" and "automatic" are interchangeable. The error message contains the
// value, the valid words and the closest one.
CLI::Validator one_of(std::vector<std::string> names);

// Adds --cache, whose value is a word for parse_cache_use().
void add_cache_option(CLI::App& command, std::string& word);

// Checks that the value of an option is an integer, or a number of seconds, in this range. The error states the range.
inline constexpr std::uint64_t no_limit = 1'000'000'000;  // larger than any value in practice
CLI::Validator whole_number(std::uint64_t least, std::uint64_t most = no_limit);
CLI::Validator number_of_seconds(double least, double most);

}  // namespace penstock::cli
