// The words of a command line: which there are, and which was probably meant by one that is none of them. Free functions; safe from any
// thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

// The name that was probably meant by the word: it begins with the word, or few letters differ. Empty where none is near.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);
// "; did you mean X?", or nothing.
std::string suggestion(std::string_view word, const std::vector<std::string>& names);

// Checks that an option's word is one of these, or "auto" for "automatic" and the other way round; its error names the word, these, and the
// one that was probably meant.
CLI::Validator one_of(std::vector<std::string> names);

// Checks that an option's word is a whole number in this range, or a number of seconds; its error tells the range.
inline constexpr std::uint64_t no_limit = 1'000'000'000;  // that anybody meets
CLI::Validator whole_number(std::uint64_t least, std::uint64_t most = no_limit);
CLI::Validator number_of_seconds(double least, double most);

}  // namespace penstock::cli
