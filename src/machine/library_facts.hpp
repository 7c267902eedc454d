// The libraries that programs on a machine load for GPUs, drives and networks, and cuFile's settings there. Plain values.
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
  std::string source;  // the name of a file, or of a variable; empty: the default
};

// What whoever knows cuFile's keys has found out.
struct settings_facts {
  std::string file;  // that counts here, there or not
  bool file_exists = false;
  std::string problem;  // why it cannot be used; empty: it can, or there is none
  std::vector<std::string> refused;
  std::vector<setting_fact> values;  // of all keys
  [[nodiscard]] const setting_fact* find(std::string_view key) const;
};

struct library_facts {
  std::optional<found_library> cuda, ucx;
  cuda_state driver;                           // what the first of them answers
  std::string visible_gpus;                    // CUDA_VISIBLE_DEVICES
  std::optional<found_library> loaded_cufile;  // what a program that asks for libcufile.so.0 gets
  bool loaded_is_ours = false;
  std::string nvidia_cufile;                  // its file; empty: not found
  std::vector<std::string> missing_preloads;  // of libcufile
  bool own_known = false;                     // whether somebody has looked for Penstock's
  std::string own_cufile;                     // its file; empty: not found
  settings_facts settings;
};

library_facts gather_libraries(const tree& from);
// What follows ".so." in the name of a file: "1.14.0"; empty where it is less than two numbers.
std::string version_in_name(const std::string& file);

}  // namespace penstock::machine
