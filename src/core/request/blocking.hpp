// Requests whose caller waits: the calling thread carries small ones itself, and lanes carry larger ones with its help.
#pragma once

#include "core/request/admission.hpp"

namespace penstock::core {

io_result run(runtime& with, file_core& file, const transfer& what, const io_options& options);

}  // namespace penstock::core
