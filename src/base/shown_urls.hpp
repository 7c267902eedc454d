// Removes secrets from the URLs in a text, so that it can be shown. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace penstock {

// Cuts off the query and the fragment of each SCHEME://... in a text, and replaces the user name and password with "...". A URL ends at
// white space, a quote or an angle bracket. Keys in s3://BUCKET/KEY and similar URLs may contain a question mark, so their query is cut off
// only if it contains a signature or a token. All other text is left unchanged.
std::string without_url_secrets(std::string_view text);

}  // namespace penstock
