// S3 request headers that a program's options determine. Pure functions.
#pragma once

#include <vector>

#include "penstock/options.hpp"
#include "penstock/status.hpp"
#include "remote/net/control.hpp"

namespace penstock::source::remote {

// Returns the headers for the request that creates an object: type, encryption, storage class, access list, tags. Error: invalid_argument
// (an invalid header value; a key without a kind of encryption that uses it).
result<std::vector<header>> headers_of_new_object(const remote_options& how);

// Returns the headers for each request for an object that is encrypted with a customer key (SSE-C); none without a key. Errors:
// invalid_argument (the key is not 32 bytes long; combined with another encryption); those of content_md5.
result<std::vector<header>> headers_of_customer_key(const remote_options& how);

}  // namespace penstock::source::remote
