// What is said to S3, and read from it, while an object is written in parts. Pure functions; what comes is bounded before it is read.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::source::remote {

// The query of a request for a part; number 0: for the upload as a whole.
[[nodiscard]] std::string upload_query(std::string_view upload_id, unsigned number);
// The body of CompleteMultipartUpload, of the ETags of all parts in their order.
[[nodiscard]] std::string completion_of(const std::vector<std::string_view>& etags);
// Of an answer to CreateMultipartUpload; nothing where it names none that may be sent back.
[[nodiscard]] std::optional<std::string> upload_id_of(std::string_view body);
// Whether a body is the whole of an answer that says that the object is there.
[[nodiscard]] bool says_completed(std::string_view body);
// Whether an ETag may stand in what is sent.
[[nodiscard]] bool fits_completion(std::string_view etag);

}  // namespace penstock::source::remote
