// The environment, the files and the servers that a search for credentials sees, made up for a test.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "remote/credentials/credential_search.hpp"
#include "support/temp_dir.hpp"
#include "sys/kernel.hpp"

namespace penstock::testing {

class outside_world {
 public:
  using answer = result<source::remote::control_answer>;

  outside_world() { variables["HOME"] = home.path().string(); }

  // Below HOME; returns its full name.
  std::string write(const std::string& name, std::string_view text) {
    const auto path = home.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }

  source::remote::variable_lookup lookup() {
    return [this](std::string_view name) -> std::optional<std::string> {
      const auto found = variables.find(std::string(name));
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
  }

  source::remote::credential_world world() {
    return {.variable = lookup(),
            .call =
                [this](const source::remote::control_request& request) {
                  asked.push_back(request);
                  return serve(request);
                },
            .kernel = kernel,
            .now = [this] { return now; },
            .run = run};
  }

  static answer answered(int status_code, std::string body) { return source::remote::control_answer{status_code, {}, std::move(body)}; }

  temp_dir home;
  std::map<std::string, std::string> variables;
  std::function<answer(const source::remote::control_request&)> serve = [](const auto&) -> answer {
    return status(errc::timed_out, "nobody answers");
  };
  std::function<result<std::string>(const std::string&)> run;
  std::vector<source::remote::control_request> asked;
  std::shared_ptr<sys::kernel> kernel = sys::make_kernel();
  source::remote::wall_time now{std::chrono::seconds(1767225600)};  // 2026-01-01T00:00:00Z
};

}  // namespace penstock::testing
