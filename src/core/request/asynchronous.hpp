// Requests whose caller goes on: one of at most 128 KiB joins the queue of its file system, a longer one is planned at once.
#pragma once

#include <memory>

#include "core/operation.hpp"
#include "core/request/admission.hpp"

namespace penstock::core {

// Takes the callback for good with what it returns; where it throws (bad_alloc), nothing was taken. The caller's reference.
operation* begin(runtime& with, const std::shared_ptr<file_core>& file, const transfer& what, const io_options& options,
                 io_callback& callback);

}  // namespace penstock::core
