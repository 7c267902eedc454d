// Internal to the settings: the table of keys, and functions that validate and store a key's value. Pure functions. Other code uses
// settings.hpp.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cufile/settings_data.hpp"

namespace penstock::cufile {

// Return null if the key does not exist. A name may be an alias.
const key* find_key(std::string_view name);
const key* find_key(key_kind kind, int parameter);
// Returns true for a prefix of known keys, such as "fs.lustre".
bool is_section(std::string_view name);

// Ignores the case of ASCII letters.
bool same_word(std::string_view a, std::string_view b);

// Why a value was rejected (target is then unchanged); empty if it was accepted.
using refusal = std::string;
std::string expected_size(const key& where);
refusal store_size(const key& where, std::size_t value, settings& target);
refusal store_limit(const key& where, std::optional<std::size_t> value, settings& target);  // nothing: no limit
refusal store_flag(const key& where, bool value, settings& target);
refusal store_word(const key& where, std::string value, settings& target);
refusal store_list(const key& where, std::vector<std::string> value, settings& target);
refusal store_addresses(const key& where, const std::vector<std::string>& value, settings& target);
refusal store_table(const key& where, const std::string& text, settings& target);  // as JSON; empty: no keys
refusal store_number(const key& where, std::string_view text, settings& target);
refusal store_slabs(const key& where, std::vector<std::size_t> value, settings& target);
// Stores a value as written in the table and in environment variables.
refusal store_text(const key& where, std::string_view text, settings& target);
slab_pool pool_of(const key& where);

}  // namespace penstock::cufile
