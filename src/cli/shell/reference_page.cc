// docs/reference/commands.md, printed by `penstock help --markdown`.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/shell/grammar.hpp"

namespace penstock::cli {
namespace {

struct guide {
  std::string_view command, link;
};

// Pages with details about a command.
constexpr std::array guides{
    guide{"check", "[Findings](check.md)"},
    guide{"devices", "[Operations](../guides/operations.md)"},
    guide{"cp", "[Copying](io.md#penstock-cp), [object storage](../guides/object-storage.md)"},
    guide{"verify", "[Verifying](io.md#penstock-verify)"},
    guide{"load", "[Models](../guides/models.md)"},
    guide{"inspect", "[Models](../guides/models.md)"},
    guide{"convert", "[Models](../guides/models.md)"},
    guide{"serve", "[Weights](../guides/weights.md#hold-a-model-for-other-processes)"},
    guide{"bench", "[Measuring a machine](bench.md)"},
    guide{"io", "[penstock io](io.md)"},
    guide{"pipe-bench", "[Pipes](../guides/pipes.md)"},
    guide{"stats", "[Operations](../guides/operations.md)"},
    guide{"top", "[Operations](../guides/operations.md)"},
    guide{"run", "[cuFile](../guides/cufile.md), [models](../guides/models.md)"},
};

constexpr std::string_view beginning = R"(# Commands
<!-- Generated: penstock help --markdown > docs/reference/commands.md -->

```sh
penstock check                               # what slows this machine down
penstock write data.bin --size 64MiB --verify
penstock read data.bin --verify              # into the first device
penstock help read                           # options and examples
```

)";

constexpr std::string_view rules = R"(
## Rules for all commands
| rule | |
|---|---|
| devices | `--device` accepts `cuda:1`, `cuda` (the first GPU), `1`, `host:0`, and in many commands `host` or `cpu` (plain memory); `--gpu 1` is `cuda:1` |
| sizes | `4KiB`, `1.5GiB`, `16M`: units are B, K, M, G, T; KiB and K are powers of 1024, KB of 1000 |
| `--json` | one JSON document on standard output; a command that fails prints one too, with the reason under `error` |
| `--quiet` | figures and errors only |
| exit codes | 0; 1 if something failed (standard error gives the reason); 2 for an invalid command line; 3 from `penstock check` if a part is broken |
| Ctrl-C, SIGTERM | the command cancels its transfer, removes its temporary files and exits within 10 s; a second signal terminates it immediately |
| full disk | a command fails if it cannot write to its standard output |
| file names | `?` replaces control characters in the names of files, tensors and programs |
| manual pages | `man penstock-read`, if Penstock was installed by CMake or as a Debian package |
)";

std::string anchor_of(const std::string& name) { return "penstock-" + name; }

std::string in_cell(const std::string& text) {
  std::string out;
  for (const char each : text) out += each == '|' ? std::string("\\|") : each == '\n' ? "<br>" : std::string(1, each);
  return out;
}

std::string table_of_commands(const std::vector<command_grammar>& grammar) {
  std::string out = "| command | purpose | details |\n|---|---|---|\n";
  for (const command_grammar& each : grammar) {
    if (each.name.empty()) continue;
    const auto* more = std::ranges::find(guides, std::string_view(each.name), &guide::command);
    out += fmt::format("| [`penstock {0}`](#{1}) | {2} | {3} |\n", each.name, anchor_of(each.name), in_cell(each.description),
                       more == guides.end() ? "" : more->link);
  }
  return out;
}

std::string table_of_options(const command_grammar& command) {
  std::string out = "\n| option | meaning |\n|---|---|\n";
  for (const auto* options : {&command.places, &command.options}) {
    for (const option_grammar& each : *options) out += fmt::format("| `{}` | {} |\n", in_cell(usage_of(each)), in_cell(each.description));
  }
  return out;
}

std::string block_of_examples(const command_grammar& command) {
  std::string block, others;
  for (const example& each : command.examples) {
    if (each.runs) {
      block += fmt::format("# {}\n{}\n", each.purpose, each.line);
    } else {
      others += fmt::format("- `{}`: {}\n", each.line, each.purpose);
    }
  }
  return (block.empty() ? "" : "\n```sh\n" + block + "```\n") + (others.empty() ? "" : "\n" + others);
}

// Turns each line of a footer into a paragraph, but keeps lists.
std::string footer_of(const command_grammar& command) {
  std::string out;
  if (command.footer.empty()) return out;
  for (const char each : command.footer) out += each == '\n' ? std::string("\n\n") : std::string(1, each);
  return "\n" + out + "\n";
}

std::string section_of(const command_grammar& command) {
  return fmt::format("\n## penstock {}\n{}.\n\nUsage: `{}`\n{}{}{}", command.name, command.description, usage_of(command),
                     block_of_examples(command), table_of_options(command), footer_of(command));
}

}  // namespace

std::string reference_page(const std::vector<command_grammar>& grammar) {
  std::string out = std::string(beginning) + table_of_commands(grammar) + std::string(rules);
  for (const command_grammar& each : grammar) {
    if (!each.name.empty()) out += section_of(each);
  }
  return out;
}

}  // namespace penstock::cli
