// Finds Penstock's libraries for cuFile programs, which are in their own folder near this command. One thread.
#pragma once

#include <string>
#include <vector>

namespace penstock::cli {

inline constexpr auto library_name = "libcufile.so.0";
inline constexpr auto audit_name = "libpenstock_audit.so";

struct own_libraries {
  std::string folder;  // empty: none of the folders contains them
  std::vector<std::string> looked_in;
  std::string error;  // the reason if the search failed
};
own_libraries find_own_libraries(bool with_audit);

}  // namespace penstock::cli
