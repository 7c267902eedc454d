// penstock convert.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "penstock/penstock.hpp"
#include "support/pickles.hpp"
#include "support/zip_files.hpp"

namespace penstock::cli_test {
namespace {

using nlohmann::json;
using test_files::checkpoint_of;
using test_files::pickle_of;
using test_files::pickled_dict;
using test_files::pickled_tensor_of;
using words = std::vector<std::string>;

class convert_test : public ::testing::Test {
 protected:
  [[nodiscard]] std::string place(const std::string& name) const { return directory_.path() + "/" + name; }
  std::string store(const std::string& name, const std::string& content) const {
    std::ofstream(place(name), std::ios::binary) << content;
    return place(name);
  }
  static std::string content_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  ended_program convert(words arguments) const {
    arguments.insert(arguments.begin(), "convert");
    return run(arguments);
  }
  // Of a file that was made: the bytes of one tensor.
  static std::string tensor_of(const std::string& path, const std::string& name) {
    const engine owner = host_engine();
    const auto from = owner.open(path);
    EXPECT_TRUE(from);
    const auto header = read_safetensors(*from);
    EXPECT_TRUE(header) << header.error().message();
    const tensor_facts* const found = header->find(name);
    EXPECT_NE(found, nullptr) << name;
    return found == nullptr ? "" : content_of(path).substr(found->offset, found->bytes);
  }
  static std::vector<std::string> names_in(const std::string& path) {
    const engine owner = host_engine();
    const auto from = owner.open(path);
    const auto header = read_safetensors(*from);
    EXPECT_TRUE(header) << header.error().message();
    std::vector<std::string> names;
    for (const tensor_facts& each : header->tensors()) names.push_back(each.name);
    return names;
  }
  void expect_refused(const words& arguments, const std::string& message) const {
    const ended_program ended = convert(arguments);
    EXPECT_EQ(ended.exit_code, 1) << ended.out;
    EXPECT_TRUE(contains(ended.err, message)) << ended.err;
    EXPECT_FALSE(contains(ended.err, "terminate")) << ended.err;
  }
  // 0, 1, 2, ... as 32-bit numbers.
  static std::string counting(std::uint32_t count) {
    std::string made;
    for (std::uint32_t i = 0; i < count; ++i) made += test_files::little_endian(i, 4);
    return made;
  }
  std::string checkpoint() const {
    const std::string ints = "torch\nIntStorage";
    const std::string pickle =
        pickle_of(pickled_dict({{"model", pickled_dict({{"w", pickled_tensor_of({"0", 6, {2, 3}, {3, 1}, 0, ints})},
                                                        {"t", pickled_tensor_of({"0", 6, {3, 2}, {1, 3}, 0, ints})}})},
                                {"state", pickled_dict({{"m", pickled_tensor_of({"1", 4, {4}, {1}, 0, "torch\nByteStorage"})}})},
                                {"step", "K\x05"}}));
    return store("model.pt", checkpoint_of(pickle, {counting(6), "abcd"}));
  }
  scratch_directory directory_;
};

TEST_F(convert_test, takes_one_dict_of_a_checkpoint_and_brings_views_into_order) {
  const std::string from = checkpoint(), to = place("model.safetensors");
  const auto ended = convert({from, to, "--key", "model"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, to + ": safetensors, 2 tensors, 48 B in ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "1 strided tensor view was made contiguous: t")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "2 tensors share storage and were written separately: ")) << ended.out;
  EXPECT_EQ(tensor_of(to, "w"), counting(6));
  std::string turned;
  for (const std::uint32_t each : {0U, 3U, 1U, 4U, 2U, 5U}) turned += test_files::little_endian(each, 4);
  EXPECT_EQ(tensor_of(to, "t"), turned);
}

TEST_F(convert_test, joins_the_names_of_dicts_in_dicts) {
  const std::string from = checkpoint(), to = place("model.safetensors");
  const auto ended = convert({from, to, "--flatten", "--tensors-only", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const json told = json::parse(ended.out);
  EXPECT_EQ(told["tensors"], 3);
  EXPECT_EQ(told["bytes"], 52);
  EXPECT_EQ(told["made_contiguous"], json({"model.t"}));
  EXPECT_EQ(told["left_out"], json({"\"step\" (int)"}));
  EXPECT_EQ(names_in(to), (words{"model.t", "model.w", "state.m"}));
  EXPECT_EQ(tensor_of(to, "state.m"), "abcd");
}

TEST_F(convert_test, names_what_has_to_be_chosen_and_leaves_what_is_there) {
  const std::string from = checkpoint(), to = store("model.safetensors", "as it was");
  expect_refused({from, to},
                 from + ": found nested dicts of tensors: \"model\" (2 tensors), \"state\" (1 tensor). Use --key NAME to select one");
  expect_refused({from, to}, "found entries that are not tensors: \"step\" (int). Use --tensors-only to skip them");
  expect_refused({from, to, "--tensors-only"}, "found nested dicts of tensors");
  expect_refused({from, to, "--flatten"}, "found entries that are not tensors: \"step\" (int)");
  expect_refused({from, to, "--key", "step"}, "the checkpoint contains no dict \"step\"; found: \"model\" (2 tensors)");
  EXPECT_EQ(content_of(to), "as it was");
  EXPECT_EQ(directory_.entries(), 2U);
}

TEST_F(convert_test, there_and_back_is_the_same_file) {
  std::vector<tensor_facts> tensors;
  for (const tensor_type type : {tensor_type::f32, tensor_type::bf16, tensor_type::boolean, tensor_type::u16, tensor_type::f8_e4m3})
    tensors.push_back({"t." + std::string(to_string(type)), type, {3, 1000}});
  tensors.push_back({"scalar", tensor_type::i64, {}});
  tensors.push_back({"none", tensor_type::f16, {0, 2}});
  // Longer than one piece, and a multiple of nothing.
  tensors.push_back({"long", tensor_type::u8, {33 * mib + 7}});
  const auto beginning = make_safetensors(tensors, tensor_metadata{{"format", "pt"}, {"k", "é"}});
  ASSERT_TRUE(beginning);
  std::string content = *beginning;
  std::mt19937_64 random(1);
  while (content.size() < tensors.back().offset + tensors.back().bytes) content.push_back(static_cast<char>(random()));
  const std::string from = store("m.safetensors", content), there = place("m.pt"), back = place("back.safetensors");
  const auto first = convert({from, there});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_TRUE(contains(first.out, there + ": checkpoint, 8 tensors, ")) << first.out;
  const auto second = convert({there, back, "-q"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_TRUE(content_of(back) == content);
  const auto told = run({"inspect", there, "--json"});
  EXPECT_EQ(json::parse(told.out).at(0).at("tensors").size(), 8U) << told.err;
}

TEST_F(convert_test, refuses_tensors_that_no_file_can_have) {
  const std::string to = place("m.safetensors");
  const auto refused = [&](const std::string& tensor, const std::string& message) {
    const std::string from = store("m.pt", checkpoint_of(pickle_of(pickled_dict({{"w", tensor}})), {std::string(4, 'x')}));
    expect_refused({from, to}, from + ": tensor \"w\": " + message);
  };
  refused(pickled_tensor_of({"0", 1, {1000}, {0}}), "it repeats the elements of its storage: 3.91 KiB of 4 B");
  refused(pickled_tensor_of({"0", 1, {1}, {1}, 0, "torch\nQInt32Storage"}), "its type torch.QInt32Storage is not supported");
  refused(pickled_tensor_of({"0", 1, {1}, {1}, 0, "torch\nFloatStorage", pickled_dict({{"neg", "\x88"}})}), "it is a lazy conjugate");
  refused(pickled_tensor_of({"0", 1, {2}, {1}}), "it starts at element 0 of its storage");
  const std::string same = pickled_tensor_of({"0", 1, {1}, {1}});
  const std::string twice =
      store("twice.pt", checkpoint_of(pickle_of(pickled_dict({{"a.b", same}, {"a", pickled_dict({{"b", same}})}})), {std::string(4, 'x')}));
  expect_refused({twice, to, "--flatten"}, twice + ": tensor \"a.b\" appears twice");
  const std::string one = store("one.pt", checkpoint_of(pickle_of(same), {std::string(4, 'x')}));
  expect_refused({one, to}, "the checkpoint is a single tensor without a name");
  expect_refused({store("list.pt", checkpoint_of(pickle_of("]"), {})), to}, "the checkpoint is a list of 0 values, not a dict of tensors");
  std::vector<tensor_facts> foreign{{"w", tensor_type::f4, {2, 3}}};
  const auto beginning = make_safetensors(foreign);
  expect_refused({store("f4.safetensors", *beginning + "xyz"), place("f4.pt")},
                 "f4.safetensors: tensor \"w\" is of type F4 and its last dimension is odd");
  EXPECT_FALSE(std::filesystem::exists(to));
}

TEST_F(convert_test, refuses_files_and_names_that_do_not_fit) {
  const std::string from = checkpoint();
  const std::string plain = place("plain.safetensors");
  ASSERT_EQ(convert({from, plain, "--key", "model"}).exit_code, 0);
  expect_refused({place("missing.pt"), plain}, "missing.pt: No such file");
  expect_refused({from, from}, "are the same file");
  expect_refused({from, place("x.pt")}, "is for another format");
  expect_refused({plain, place("x.safetensors")}, "is for another format");
  expect_refused({plain, place("x.pt"), "--flatten"}, "--key, --flatten and --tensors-only work only with checkpoints");
  expect_refused({from, place("no/folder.safetensors"), "--key", "model"}, "no");
  expect_refused({from, directory_.path(), "--key", "model"}, directory_.path());
  expect_refused({store("old.pt", "\x80\x02\x8a\x0al\xfc\x9c" + std::string(200, 'x')), plain},
                 "a checkpoint in the format of PyTorch 1.5");
  expect_refused({store("no.pt", "neither"), place("x.pt")}, "not a safetensors file: it is 7 bytes long");
  const std::string whole = content_of(from);
  for (std::size_t length = 0; length < whole.size(); length += 101) {
    EXPECT_EQ(convert({store("cut.pt", whole.substr(0, length)), place("x.out"), "--key", "model"}).exit_code, 1) << length;
  }
  EXPECT_FALSE(std::filesystem::exists(place("x.out")));
  EXPECT_EQ(convert({from}).exit_code, 2);
}

TEST_F(convert_test, a_pickle_that_asks_for_a_program_runs_none) {
  const std::string witness = place("witness");
  const std::string pickle = pickle_of(test_files::pickled_name("os\nsystem") + test_files::pickled_text("touch " + witness) + "\x85R");
  expect_refused({store("evil.pt", checkpoint_of(pickle, {})), place("x.safetensors")}, "unsupported global os.system");
  EXPECT_FALSE(std::filesystem::exists(witness));
}

// For this process and the programs that it starts: files become no longer than this, and writing more fails (EFBIG).
class file_size_limit {
 public:
  explicit file_size_limit(rlim_t bytes) : before_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit lower{bytes, limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &lower);
  }
  file_size_limit(const file_size_limit&) = delete;
  file_size_limit& operator=(const file_size_limit&) = delete;
  ~file_size_limit() {
    ::setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, before_);
  }

 private:
  rlimit limit_{};
  void (*before_)(int);
};

TEST_F(convert_test, a_write_that_fails_is_told_and_leaves_what_was_there) {
  std::vector<tensor_facts> tensors{{"w", tensor_type::u8, {40 * mib}}};
  const auto beginning = make_safetensors(tensors);
  const std::string from = store("m.safetensors", *beginning + std::string(40 * mib, 'x'));
  const std::string large = store(
      "large.pt", checkpoint_of(pickle_of(pickled_dict({{"w", pickled_tensor_of({"0", 2048, {2048}, {1}})}})), {std::string(8192, 'x')}));
  const std::string to = store("m.out", "as it was");
  for (const rlim_t limit : {rlim_t{4096}, rlim_t{20 * mib}}) {
    const file_size_limit lower(limit);
    expect_refused({from, to}, "File too large");
    expect_refused({from, to}, to);
  }
  {
    const file_size_limit lower(4096);  // the messages go to a file, too
    expect_refused({large, to}, "File too large");
  }
  EXPECT_EQ(content_of(to), "as it was");
  EXPECT_EQ(directory_.entries(), 3U);
}

}  // namespace
}  // namespace penstock::cli_test
