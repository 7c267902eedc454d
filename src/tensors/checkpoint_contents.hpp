// Interprets a checkpoint's pickle together with the archive that contains it. Free functions; thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "penstock/torch_checkpoint.hpp"

namespace penstock::tensors {

// The archive member that lists the tensors.
inline constexpr std::string_view pickle_name = "data.pkl";
// Returns the prefix of all member names: a folder name such as "archive/", or nothing. Errors: invalid_argument (not a checkpoint).
result<std::string> checkpoint_folder(std::span<const zip_member> members);

// pickle: the pickle's bytes. members: the archive's members. folder: the prefix of their names. Errors: invalid_argument and unsupported,
// as for read_torch_checkpoint().
result<torch_checkpoint> contents_of(std::string_view pickle, std::span<const zip_member> members, std::string_view folder);

// Returns ok if the archive contains all bytes of every storage that its pickle refers to, or if Penstock cannot read the pickle. Reads the
// pickle; blocks. Errors: invalid_argument (lists up to 20 missing storages, or names the first one that is too short).
status check_storages(const file& from, std::span<const zip_member> members, const std::string& folder);

// The attribute of the dict that stores the metadata.
inline constexpr std::string_view metadata_attribute = "safetensors_metadata";

}  // namespace penstock::tensors
