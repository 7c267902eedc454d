// Interprets the pickle of a checkpoint, with the archive that contains it. Free functions; thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "penstock/torch_checkpoint.hpp"

namespace penstock::tensors {

// The archive member that lists the tensors.
inline constexpr std::string_view pickle_name = "data.pkl";
// Returns the prefix of all member names: "archive/", with any folder name, or nothing. Errors: invalid_argument (not a checkpoint).
result<std::string> checkpoint_folder(std::span<const zip_member> members);

// pickle: its bytes; members: of its archive; folder: the prefix of their names. Errors: invalid_argument and unsupported, as for
// read_torch_checkpoint().
result<torch_checkpoint> contents_of(std::string_view pickle, std::span<const zip_member> members, std::string_view folder);

// Ok if the archive has every storage that its pickle names, with all of its bytes, or if Penstock cannot read the pickle. Reads the
// pickle; blocks. Errors: invalid_argument (names up to 20 missing storages, or the first one that is too short).
status check_storages(const file& from, std::span<const zip_member> members, const std::string& folder);

// The attribute of the dict that stores the metadata.
inline constexpr std::string_view metadata_attribute = "safetensors_metadata";

}  // namespace penstock::tensors
