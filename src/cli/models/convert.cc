// penstock convert: converts torch.save checkpoints to safetensors files, and back.
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
  remark_on("strided tensor view was made contiguous", "strided tensor views were made contiguous", done.strided);
  remark_on("tensor shares storage with another and was written separately", "tensors share storage and were written separately",
            done.shared);
  remark_on("entry is not a tensor and was left out", "entries are not tensors and were left out", done.left_out);
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
    complain("penstock: interrupted; {} is unchanged\n", wanted.to);
    return interrupted_exit_code();
  }
  if (!done) return fail(done.error());
  wanted.output.json ? print_converted_as_json(wanted, *done) : print_converted(wanted, *done);
  return exit_success;
}

}  // namespace

void add_convert(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<convert_options>();
  CLI::App& sub = *app.add_subcommand("convert", "Convert a torch.save checkpoint to a safetensors file, or vice versa");
  sub.add_option("FROM", wanted->from, "Safetensors file or torch.save checkpoint")->required();
  sub.add_option("TO", wanted->to, "File to write in the other format; an existing file is replaced when the new one is complete")
      ->required();
  sub.add_option("--key", wanted->selection.key, "Convert only the tensors in this dict of the checkpoint: model, or outer.inner");
  sub.add_flag("--flatten", wanted->selection.flatten, "Join the keys of nested dicts with dots");
  sub.add_flag("--tensors-only", wanted->selection.tensors_only, "Skip everything that is not a tensor");
  add_output_options(sub, wanted->output);
  sub.footer("convert executes no code from a checkpoint and needs neither Python nor PyTorch.");
  sub.callback([wanted, &chosen] { chosen.run = [wanted] { return convert(*wanted); }; });
}

}  // namespace penstock::cli
