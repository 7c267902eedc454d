// Requests whose caller does not wait. A request of at most 128 KiB joins its file system's queue; a longer one is planned at once.
#pragma once

#include <memory>

#include "core/operation.hpp"
#include "core/request/admission.hpp"

namespace penstock::core {

// Starts a request. Takes the callback when it returns; if it throws (bad_alloc), the callback is unchanged. The caller owns the reference.
operation* begin(runtime& with, const std::shared_ptr<file_core>& file, const transfer& what, const io_options& options,
                 io_callback& callback);

}  // namespace penstock::core
