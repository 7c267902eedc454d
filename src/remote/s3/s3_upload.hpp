// Requests and response parsers for S3 multipart uploads. Pure functions; the input size is checked before parsing.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::source::remote {

// Returns the query of a request about a part; number 0: about the upload as a whole.
[[nodiscard]] std::string upload_query(std::string_view upload_id, unsigned number);
// Returns the body of CompleteMultipartUpload for the ETags of all parts, in order.
[[nodiscard]] std::string completion_of(const std::vector<std::string_view>& etags);
// Parses the response to CreateMultipartUpload; nullopt if it contains no valid upload ID.
[[nodiscard]] std::optional<std::string> upload_id_of(std::string_view body);
// Returns true if a body is a complete response that confirms that the object was created.
[[nodiscard]] bool says_completed(std::string_view body);
// Returns true if an ETag can be sent in a completion.
[[nodiscard]] bool fits_completion(std::string_view etag);

}  // namespace penstock::source::remote
