// The libraries that programs on a machine load for GPUs, drives and networks, and cuFile's settings. Plain values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "machine/cuda_driver.hpp"
#include "machine/loader.hpp"
#include "machine/tree.hpp"

namespace penstock::machine {

struct setting_fact {
  std::string key, value, standard;
  std::string source;  // the name of a file or a variable; empty: the default
};

// cuFile's settings, as determined by code that knows its keys.
struct settings_facts {
  std::string file;  // the file that applies here, whether or not it exists
  bool file_exists = false;
  std::string problem;  // why the file is unusable; empty: it is usable or missing
  std::vector<std::string> refused;
  std::vector<setting_fact> values;  // values of all keys
  [[nodiscard]] const setting_fact* find(std::string_view key) const;
};

struct library_facts {
  std::optional<found_library> cuda, ucx;
  cuda_state driver;                           // what the libcuda above reports
  std::string visible_gpus;                    // CUDA_VISIBLE_DEVICES
  std::optional<found_library> loaded_cufile;  // the library that a program loads for libcufile.so.0
  bool loaded_is_ours = false;
  std::string nvidia_cufile;                  // path of NVIDIA's libcufile; empty: not found
  std::vector<std::string> missing_preloads;  // entries of LD_PRELOAD for libcufile that do not exist
  bool own_known = false;                     // Penstock's libcufile has been searched for
  std::string own_cufile;                     // path of Penstock's libcufile; empty: not found
  settings_facts settings;
};

library_facts gather_libraries(const tree& from);
// Returns the part after ".so." in a file name: "1.14.0"; empty if it has fewer than two numbers.
std::string version_in_name(const std::string& file);

}  // namespace penstock::machine
