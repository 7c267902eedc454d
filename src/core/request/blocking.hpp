// Requests whose caller waits: small ones are carried on his own thread, larger ones by the lanes, with his help.
#pragma once

#include "core/request/admission.hpp"

namespace penstock::core {

io_result run(runtime& with, file_core& file, const transfer& what, const io_options& options);

}  // namespace penstock::core
