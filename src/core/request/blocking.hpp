// Requests whose caller waits. The calling thread transfers small ones itself; lanes transfer larger ones with its help.
#pragma once

#include "core/request/admission.hpp"

namespace penstock::core {

io_result run(runtime& with, file_core& file, const transfer& what, const io_options& options);

}  // namespace penstock::core
