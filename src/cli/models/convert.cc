// penstock convert: checkpoints of torch.save to safetensors files, and back.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>

#include "bench/meter.hpp"
#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/models/convert_file.hpp"

namespace penstock::cli {
namespace {

struct convert_options {
  std::string from, to;
  selection_options selection;
  output_options output;
};

void remark_on(std::string_view one, std::string_view several, const std::vector<std::string>& names) {
  constexpr std::size_t most = 5;
  if (names.empty()) return;
  std::string list;
  for (const std::string& each : std::span(names).first(std::min(names.size(), most))) list += (list.empty() ? "" : ", ") + each;
  say("  {} {}: {}{}\n", names.size(), names.size() == 1 ? one : several, list, names.size() > most ? ", ..." : "");
}

void print_converted(const convert_options& wanted, const converted_file& done) {
  say("{}: {}, {}, {} in {:.3f} s, {:.2f} GB/s\n", wanted.to, done.kind, counted(done.tensors, "tensor"), format_size(done.bytes),
      done.seconds, bench::gigabytes_per_second(done.bytes, done.seconds));
  if (wanted.output.quiet) return;
  remark_on("tensor was a view with strides, and is contiguous now", "tensors were views with strides, and are contiguous now",
            done.strided);
  remark_on("tensor shared a storage, and is written by itself", "tensors shared storages, and are written each by itself", done.shared);
  remark_on("entry is no tensor, and was left out", "entries are no tensors, and were left out", done.left_out);
}

void print_converted_as_json(const convert_options& wanted, const converted_file& done) {
  print_json({{"from", wanted.from},
              {"to", wanted.to},
              {"kind", done.kind},
              {"tensors", done.tensors},
              {"bytes", done.bytes},
              {"seconds", done.seconds},
              {"made_contiguous", done.strided},
              {"shared_storages", done.shared},
              {"left_out", done.left_out}});
}

int convert(const convert_options& wanted) {
  auto owner = make_engine();
  if (!owner) return fail(owner.error());
  const auto done = convert_file(*owner, wanted.from, wanted.to, wanted.selection);
  if (!done && interrupted()) {
    complain("penstock: interrupted; {} is as it was\n", wanted.to);
    return interrupted_exit_code();
  }
  if (!done) return fail(done.error());
  wanted.output.json ? print_converted_as_json(wanted, *done) : print_converted(wanted, *done);
  return exit_success;
}

}  // namespace

void add_convert(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<convert_options>();
  CLI::App& sub =
      *app.add_subcommand("convert", "Make a safetensors file of a checkpoint of torch.save, or a checkpoint of a safetensors file");
  sub.add_option("FROM", wanted->from, "A safetensors file, or a checkpoint of torch.save")->required();
  sub.add_option("TO", wanted->to, "The file to make in the other format; one that is there is replaced once the new one is whole")
      ->required();
  sub.add_option("--key", wanted->selection.key, "Of a checkpoint, take the tensors in this dict only: model, or outer.inner");
  sub.add_flag("--flatten", wanted->selection.flatten, "Of dicts in dicts, join the keys by dots");
  sub.add_flag("--tensors-only", wanted->selection.tensors_only, "Leave out what is no tensor");
  add_output_options(sub, wanted->output);
  sub.footer("Nothing that a checkpoint asks for is executed. Neither Python nor PyTorch is needed.");
  sub.callback([wanted, &chosen] { chosen.run = [wanted] { return convert(*wanted); }; });
}

}  // namespace penstock::cli
