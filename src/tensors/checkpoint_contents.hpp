// What the pickle of a checkpoint means, with the archive that it stands in. Free functions; safe from any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "penstock/torch_checkpoint.hpp"

namespace penstock::tensors {

// The member that names the tensors.
inline constexpr std::string_view pickle_name = "data.pkl";
// What the names of all members begin with: "archive/", whatever it is called, or nothing. Errors: invalid_argument (no checkpoint).
result<std::string> checkpoint_folder(std::span<const zip_member> members);

// pickle: its text; members: of its archive; folder: what their names begin with, "archive/" or nothing. Errors: invalid_argument and
// unsupported, as of read_torch_checkpoint().
result<torch_checkpoint> contents_of(std::string_view pickle, std::span<const zip_member> members, std::string_view folder);

// Ok if the archive has every storage that its pickle names, with all of its bytes, or if the pickle is none that can be read here. Reads
// the pickle; blocks. Errors: invalid_argument, naming up to 20 that are missing, or the first that is too short.
status check_storages(const file& from, std::span<const zip_member> members, const std::string& folder);

// The attribute of the dict that metadata is kept in.
inline constexpr std::string_view metadata_attribute = "safetensors_metadata";

}  // namespace penstock::tensors
