// The measuring functions of the rows, for the table in rows.cc. Each blocks, and returns errc::cancelled if it is stopped.
#pragma once

#include "bench/rows.hpp"

namespace penstock::bench {

// read_rows.cc
result<row_result> hot_4g(workbench& bench);
result<row_result> hot_4g_cpu(workbench& bench);
result<row_result> hot_16m(workbench& bench);
result<row_result> hot_1m(workbench& bench);
result<row_result> hot_16m_ahead(workbench& bench);
result<row_result> hot_1m_ahead(workbench& bench);
result<row_result> hot_1m_t8(workbench& bench);
result<row_result> hot_gpus(workbench& bench);
result<row_result> call_4k(workbench& bench);
result<row_result> call_64k(workbench& bench);
result<row_result> batch_4k_hot(workbench& bench);
result<row_result> unaligned(workbench& bench);
result<row_result> cold_4g(workbench& bench);
result<row_result> half_hot(workbench& bench);
result<row_result> batch_4k_cold(workbench& bench);
result<row_result> unaligned_cold(workbench& bench);

// write_rows.cc
result<row_result> write_hot(workbench& bench);
result<row_result> write_direct(workbench& bench);
result<row_result> write_new(workbench& bench);
result<row_result> start(workbench& bench);
result<row_result> pinned(workbench& bench);

}  // namespace penstock::bench
