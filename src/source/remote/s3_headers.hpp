// Headers of S3 requests that follow from a program's options. Pure functions.
#pragma once

#include <vector>

#include "penstock/options.hpp"
#include "penstock/status.hpp"
#include "source/remote/control.hpp"

namespace penstock::source::remote {

// Headers of the request that creates an object: type, encryption, storage class, access list, tags. Error: invalid_argument (a value that
// is not a valid header value; a key without a kind of encryption that uses it).
result<std::vector<header>> headers_of_new_object(const remote_options& how);

// Headers of each request for an object that is encrypted with a customer key (SSE-C); none without a key. Errors: invalid_argument (the
// key does not have 32 bytes; combined with another encryption); those of content_md5.
result<std::vector<header>> headers_of_customer_key(const remote_options& how);

}  // namespace penstock::source::remote
