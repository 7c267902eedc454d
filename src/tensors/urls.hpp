// Model URLs: the folder part and the files below it. Free functions on text; thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace penstock::tensors {

// Returns the part before the query. s3://BUCKET/KEY has no query: each character of the key is literal.
std::string_view without_query(std::string_view url);

// Returns true if the last component has a tensor file extension.
bool names_a_file(std::string_view url);

// as_folder() inserts "/" before the query of a folder's URL. folder_of_url() returns a file's folder in that form.
std::string as_folder(std::string_view url);
std::string folder_of_url(std::string_view url);
// Returns the URL of the file with this name in a folder in that form. Keeps the folder's query.
std::string below(std::string_view folder, std::string_view name);

}  // namespace penstock::tensors
