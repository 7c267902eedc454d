// Text fit to be shown although there may be URLs in it that give access. A free function; safe from any thread.
#pragma once

#include <string>
#include <string_view>

namespace penstock {

// Cuts off what may be secret in each SCHEME://... of a text: the query and the fragment, and "..." stands for a user name and password.
// A URL ends at a blank, a quote or an angle bracket. Of s3://BUCKET/KEY and its like, whose key may have a question mark, a query is cut
// off only if it has a signature or a token. Other text stays as it is.
std::string without_url_secrets(std::string_view text);

}  // namespace penstock
