// Removes secrets from URLs in a text, so that it can be shown. A free function, safe from any thread.
#pragma once

#include <string>
#include <string_view>

namespace penstock {

// Cuts off the query and the fragment of each SCHEME://... in a text, and replaces user name and password by "...". A URL ends at white
// space, a quote or an angle bracket. Keys of s3://BUCKET/KEY and similar URLs may contain a question mark, so their query is cut off only
// if it contains a signature or a token. All other text stays as it is.
std::string without_url_secrets(std::string_view text);

}  // namespace penstock
