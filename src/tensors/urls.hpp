// URLs of models: which part of them is a folder, and what lies below it. Free functions over text; safe from any thread.
#pragma once

#include <string>
#include <string_view>

namespace penstock::tensors {

// All before the query. In s3://BUCKET/KEY there is none: each character of a key stands for itself.
std::string_view without_query(std::string_view url);

// Whether the last part has an ending that files of tensors have.
bool names_a_file(std::string_view url);

// A folder's URL as these have it: with "/" before its query. The second: the folder that a file lies in.
std::string as_folder(std::string_view url);
std::string folder_of_url(std::string_view url);
// The URL of a file by its name from such a folder. The folder's query stays.
std::string below(std::string_view folder, std::string_view name);

}  // namespace penstock::tensors
