// Checkpoints of torch.save: what is read, rejected and written.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "penstock/model.hpp"
#include "penstock/torch_checkpoint.hpp"
#include "support/engines.hpp"
#include "support/pickles.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "tensors/checkpoint_contents.hpp"
#include "tensors/pickle_reader.hpp"
#include "tensors/tensor_files.hpp"

namespace penstock {
namespace {

using test_files::checkpoint_of;
using test_files::pickle_of;
using test_files::pickled_dict;
using test_files::pickled_name;
using test_files::pickled_number;
using test_files::pickled_tensor_of;
using test_files::pickled_text;
using test_files::pickled_tuple;
using test_files::zip_of;

bool mentions(const status& error, std::string_view text) { return error.message().find(text) != std::string_view::npos; }

class checkpoint_test : public ::testing::Test {
 protected:
  [[nodiscard]] result<torch_checkpoint> read(const std::string& content) const {
    testing::store_file(path_, std::as_bytes(std::span(content)));
    return read_torch_checkpoint(testing::opened_file(engine_, path_, {.read = true}));
  }
  // Of an image without the tensors' bytes.
  [[nodiscard]] result<torch_checkpoint> written_and_read(const torch_checkpoint_image& image) const {
    const auto parts = image.parts({});
    EXPECT_TRUE(parts);
    if (!parts) return parts.error();
    {
      std::ofstream out(path_, std::ios::binary);
      for (const placed_bytes& each : *parts) {
        out.seekp(static_cast<std::streamoff>(each.offset));
        out << each.bytes;
      }
    }
    return read_torch_checkpoint(testing::opened_file(engine_, path_, {.read = true}));
  }
  // Of one storage of so many floats.
  [[nodiscard]] result<torch_checkpoint> read_pickle(const std::string& value, std::size_t floats = 6) const {
    return read(checkpoint_of(pickle_of(value), {std::string(floats * 4, 'x')}));
  }
  void expect_refused(const result<torch_checkpoint>& read, std::string_view message, errc code = errc::invalid_argument) const {
    ASSERT_FALSE(read) << message;
    EXPECT_EQ(read.error().code(), code) << read.error().message();
    EXPECT_TRUE(mentions(read.error(), message)) << read.error().message();
    EXPECT_TRUE(mentions(read.error(), path_)) << read.error().message();
  }
  testing::temp_dir directory_;
  std::string path_ = directory_.file("model.pt");
  engine engine_ = testing::made_engine(testing::without_cuda());
};

TEST_F(checkpoint_test, tells_tensors_where_they_lie_and_what_else_there_is) {
  const std::string view = pickled_tensor_of({"0", 6, {2, 2}, {3, 1}, 1});
  const std::string whole = pickled_tensor_of({"0", 6, {2, 3}, {3, 1}});
  const std::string content = checkpoint_of(
      pickle_of(pickled_dict({{"model", pickled_dict({{"v", view}, {"w", whole}})}, {"step", "K\x05"}, {"names", "]"}, {"none", "N"}})),
      {std::string(24, 'x')});
  const auto found = read(content);
  ASSERT_TRUE(found) << found.error().message();
  ASSERT_EQ(found->tensors.size(), 2U);
  const checkpoint_tensor &v = found->tensors[0], &w = found->tensors[1];
  EXPECT_EQ(v.name(), "model.v");
  EXPECT_EQ(v.shape, (std::vector<std::uint64_t>{2, 2}));
  EXPECT_FALSE(v.contiguous);
  EXPECT_EQ(v.bytes, 16U);
  EXPECT_EQ(v.extent, 20U);
  EXPECT_EQ(v.offset, w.offset + 4);
  EXPECT_TRUE(w.contiguous);
  EXPECT_EQ(content.substr(w.offset, w.bytes), std::string(24, 'x'));
  EXPECT_EQ(w.storage, "m/data/0");
  EXPECT_EQ(v.storage, w.storage);
  ASSERT_EQ(found->others.size(), 3U);
  EXPECT_EQ(found->others[0].kind, "int");
  EXPECT_EQ(found->others[1].kind, "list of 0 values");
  EXPECT_EQ(found->others[2].kind, "None");
}

TEST_F(checkpoint_test, dimensions_of_one_element_have_any_stride) {
  const auto found = read_pickle(pickled_dict({{"a", pickled_tensor_of({"0", 6, {1, 6, 1}, {99, 1, 99}})}}));
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_TRUE(found->tensors[0].contiguous);
  EXPECT_EQ(found->tensors[0].extent, 24U);
}

TEST_F(checkpoint_test, reads_attributes_parameters_and_sizes) {
  const std::string ordered = pickled_name("collections\nOrderedDict") + ")R";
  const std::string parameter =
      pickled_name("torch._utils\n_rebuild_parameter") + pickled_tensor_of({"0", 6, {6}, {1}}) + "\x88" + ordered + "\x87R";
  const std::string size = pickled_name("torch\nSize") + pickled_tuple({1, 2}) + "\x85R";
  const auto found =
      read_pickle(ordered + "(" + pickled_text("p") + parameter + pickled_text("s") + size + "u}" + pickled_text("_metadata") + "}s" + "b");
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(found->tensors.at(0).name(), "p");
  EXPECT_EQ(found->others.at(0).kind, "tuple of 2 values");
  EXPECT_TRUE(found->metadata.empty());
}

TEST_F(checkpoint_test, names_what_a_pickle_asks_for_and_runs_nothing) {
  const std::string witness = directory_.file("witness");
  const auto found = read_pickle(pickled_name("posix\nsystem") + pickled_text("touch " + witness) + "\x85R");
  expect_refused(found, "unsupported global posix.system: only those used for tensors are allowed");
  EXPECT_FALSE(std::filesystem::exists(witness));
  expect_refused(read_pickle(pickled_name("torch._utils\n_rebuild_qtensor") + ")R"), "torch._utils._rebuild_qtensor");
  expect_refused(read_pickle(pickled_name("a\x1b[2J\nb") + ")R"), "unsupported global a?[2J.b");
  expect_refused(read_pickle(pickled_name("torch\nFloatStorage") + ")R"), "unexpected arguments for torch.FloatStorage");
}

TEST_F(checkpoint_test, refuses_tensors_that_do_not_lie_in_their_storage) {
  const auto refused = [&](const test_files::pickled_view& view, std::string_view message, errc code = errc::invalid_argument) {
    const auto found = read_pickle(pickled_dict({{"w", pickled_tensor_of(view)}}));
    expect_refused(found, message, code);
    expect_refused(found, "tensor \"w\"", code);
  };
  const std::uint64_t huge = std::uint64_t{1} << 62;
  refused({"0", 6, {7}, {1}}, "extends past the end: the storage has 6 elements");
  refused({"0", 6, {6}, {1}, 1}, "it starts at element 1 of its storage \"m/data/0\" and extends past the end");
  refused({"0", 6, {2}, {huge}}, "extends past the end");
  refused({"0", 6, {2, 2}, {huge, huge * 2 - 1}}, "extends past the end");
  refused({"0", 6, {1}, {1}, huge * 2 - 1}, "extends past the end");
  refused({"0", 6, {huge, huge}, {0, 0}}, "its size in bits does not fit into 64 bits");
  refused({"0", 7, {1}, {1}}, "has 24 bytes, but the pickle expects 7 elements of torch.FloatStorage");
  refused({"0", huge, {1}, {1}}, "but the pickle expects 4611686018427387904 elements");
  refused({"1", 6, {6}, {1}}, "its storage \"m/data/1\" is missing from the archive");
  refused({"../0", 6, {6}, {1}}, "is missing from the archive");
}

TEST_F(checkpoint_test, refuses_storages_that_are_there_twice_or_packed) {
  const std::string pickle = pickle_of(pickled_dict({{"w", pickled_tensor_of({"0", 1, {1}, {1}})}}));
  expect_refused(read(zip_of({{"m/data.pkl", pickle}, {"m/data/0", "1234"}, {"m/data/0", "5678"}}, false)), "appears twice in the archive");
  std::string packed = zip_of({{"m/data.pkl", pickle}, {"m/data/0", "1234"}}, false);
  packed[packed.rfind("PK\x01\x02") + 10] = 8;
  expect_refused(read(packed), "tensor \"w\": its storage \"m/data/0\" is compressed", errc::unsupported);
  packed = zip_of({{"m/data.pkl", pickle}, {"m/data/0", "1234"}}, false);
  packed[packed.find("PK\x01\x02") + 10] = 8;
  expect_refused(read(packed), "\"m/data.pkl\" is compressed", errc::unsupported);
  expect_refused(read(zip_of({{"m/data.pkl", pickle}, {"n/data.pkl", pickle}}, false)), "it contains several pickles");
  expect_refused(read(zip_of({{"m/x", "y"}}, false)), "does not contain data.pkl");
  expect_refused(read(zip_of({{"m/data.pkl", pickle}, {"m/data/0", "1234"}, {"m/byteorder", "big"}}, false)), "its byte order is \"big\"",
                 errc::unsupported);
}

TEST_F(checkpoint_test, archives_with_missing_parts_are_refused) {
  const std::string pickle =
      pickle_of(pickled_dict({{"v", pickled_tensor_of({"0", 1, {1}, {1}})}, {"w", pickled_tensor_of({"1", 1, {1}, {1}})}}));
  const std::string whole = zip_of({{"m/data.pkl", pickle}, {"m/data/0", "1234"}, {"m/data/1", "5678"}}, false);
  const std::size_t end = whole.rfind("PK\x05\x06");
  const auto changed = [&](std::size_t at, char to) {
    std::string made = whole;
    made[end + at] = to;
    return made;
  };
  ASSERT_TRUE(read(whole));
  expect_refused(read(changed(8, 1)), "this is one part of a split archive");
  std::string counted = changed(8, 2);
  counted[end + 10] = 2;
  expect_refused(read(counted), "the directory has more members than the 2 that its end record states");
  expect_refused(read(zip_of({{"m/data.pkl", pickle}, {"m/data/0", "1234"}}, false)),
                 "its storage \"m/data/1\" is missing from the archive");
  const auto opened = model::open(engine_, {path_});
  ASSERT_FALSE(opened) << "although its storages could be loaded without the pickle";
  EXPECT_EQ(opened.error().message(), path_ + ": storages referenced by the pickle are missing from the archive: \"m/data/1\"");
}

TEST_F(checkpoint_test, a_storage_shorter_than_its_pickle_says_is_not_opened) {
  const std::string pickle = pickle_of(pickled_dict({{"v", pickled_tensor_of({"0", 6, {6}, {1}})}}));
  for (const std::size_t bytes : {0U, 4U, 23U}) {
    expect_refused(read(zip_of({{"m/data.pkl", pickle}, {"m/data/0", std::string(bytes, '1')}}, false)),
                   "but the pickle expects 6 elements");
    const auto opened = model::open(engine_, {path_});
    ASSERT_FALSE(opened) << bytes;
    EXPECT_EQ(opened.error().message(), fmt::format("{}: its storage \"m/data/0\" has {} bytes, but the pickle expects 24", path_, bytes));
  }
}

TEST_F(checkpoint_test, values_that_are_not_in_the_file_are_told_with_the_tensor) {
  const std::string deferred = pickled_tensor_of({"0", 6, {6}, {1}, 0, "torch\nFloatStorage", pickled_dict({{"neg", "\x88"}})});
  const std::string foreign = pickled_tensor_of({"0", 6, {6}, {1}, 0, "torch\nQInt32Storage"});
  const auto found = read_pickle(pickled_dict({{"d", deferred}, {"f", foreign}, {"e", pickled_tensor_of({"0", 6, {0, 9}, {9, 1}, 5})}}));
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_TRUE(mentions(found->tensors.at(0).problem, "lazy conjugate or negative"));
  EXPECT_TRUE(mentions(found->tensors.at(1).problem, "its type torch.QInt32Storage is not supported"));
  EXPECT_TRUE(found->tensors.at(2).problem.ok());
  EXPECT_EQ(found->tensors.at(2).bytes, 0U);
}

TEST_F(checkpoint_test, nesting_takes_no_stack_and_no_memory_without_end) {
  std::string deep;
  for (int i = 0; i < 200'000; ++i) deep += "}" + pickled_text("k");
  deep += "N" + std::string(200'000, 's');
  expect_refused(read_pickle(deep), "nested deeper than 64");
  std::string lists(200'000, ']');
  lists += std::string(199'999, 'a');
  EXPECT_EQ(read_pickle(pickled_dict({{"l", lists}}))->others.at(0).kind, "list of 1 values");
  // A dict in itself.
  expect_refused(read_pickle(std::string("}q\0", 3) + pickled_text("k") + std::string("h\0s", 3)), "nested deeper than 64");
  // Each of 40 dicts is in the next one twice: a pickle of a page for 2^40 members.
  std::string laughs = "(";
  for (int i = 0; i < 40; ++i) {
    const std::string before = "h" + std::string(1, static_cast<char>(i - 1)), place = "q" + std::string(1, static_cast<char>(i));
    laughs += (i == 0 ? pickled_dict({{"k", "N"}}) : pickled_dict({{"a", before}, {"b", before}})) + place;
  }
  laughs += "t";
  laughs = pickled_dict({{"all", laughs}, {"last", std::string("h\x27")}});
  expect_refused(read_pickle(laughs), "its dicts contain more than 1048576 entries");
}

TEST_F(checkpoint_test, a_file_that_is_cut_off_or_damaged_is_refused_or_told) {
  std::vector<tensor_facts> tensors{{"a", tensor_type::f32, {2, 3}}, {"b", tensor_type::u16, {1}}};
  const auto image = make_torch_checkpoint(tensors);
  ASSERT_TRUE(image);
  const auto parts = image->parts({});
  ASSERT_TRUE(parts);
  std::string whole;
  for (const placed_bytes& each : *parts) {
    whole.resize(each.offset, 'x');
    whole += each.bytes;
  }
  ASSERT_TRUE(read(whole)) << read(whole).error().message();
  for (std::size_t length = 0; length < whole.size(); length += 13) EXPECT_FALSE(read(whole.substr(0, length))) << length;
  for (std::size_t at = 0; at < whole.size(); at += 3) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(~damaged[at]);
    const auto found = read(damaged);
    if (!found) {
      EXPECT_FALSE(found.error().message().empty());
      continue;
    }
    for (const checkpoint_tensor& each : found->tensors) {
      EXPECT_TRUE(!each.problem.ok() || each.offset + each.extent <= damaged.size()) << at;
    }
  }
}

// --- writing

std::vector<tensor_facts> tensors_of_all_types() {
  std::vector<tensor_facts> made;
  for (int i = 0; i < tensor_type_count; ++i) {
    const auto type = static_cast<tensor_type>(i);
    if (tensors::name_of_type(type)) made.push_back({"layer." + std::string(to_string(type)), type, {3, 2}});
  }
  made.push_back({"scalar", tensor_type::f32, {}});
  made.push_back({"none", tensor_type::i64, {0, 5}});
  made.push_back({"層", tensor_type::bf16, {300, 70'000}});
  return made;
}

TEST_F(checkpoint_test, what_is_made_is_read_as_it_was) {
  auto tensors = tensors_of_all_types();
  const tensor_metadata metadata{{"format", "pt"}, {"é", "\n"}};
  const auto image = make_torch_checkpoint(tensors, metadata);
  ASSERT_TRUE(image) << image.error().message();
  const auto found = written_and_read(*image);
  ASSERT_TRUE(found) << found.error().message();
  ASSERT_EQ(found->tensors.size(), tensors.size());
  EXPECT_EQ(found->metadata, metadata);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const checkpoint_tensor& each = found->tensors[i];
    EXPECT_EQ(each.name(), tensors[i].name);
    EXPECT_EQ(each.type, tensors[i].type);
    EXPECT_EQ(each.shape, tensors[i].shape);
    EXPECT_EQ(each.offset, tensors[i].offset);
    EXPECT_EQ(each.bytes, tensors[i].bytes);
    EXPECT_TRUE(each.contiguous);
    EXPECT_EQ(each.offset % torch_storage_alignment, 0U);
  }
}

TEST_F(checkpoint_test, files_beyond_32_bits_have_wide_numbers) {
  const std::uint64_t large = (std::uint64_t{4} << 30) + 5;
  std::vector<tensor_facts> tensors{{"a", tensor_type::u8, {large}}, {"b", tensor_type::u8, {7}}};
  for (int i = 0; i < 66'000; ++i) tensors.push_back({"t" + std::to_string(i), tensor_type::u8, {1}});
  const auto image = make_torch_checkpoint(tensors);
  ASSERT_TRUE(image) << image.error().message();
  const auto found = written_and_read(*image);
  ASSERT_TRUE(found) << found.error().message();
  ASSERT_EQ(found->tensors.size(), tensors.size());
  EXPECT_EQ(found->tensors[0].bytes, large);
  EXPECT_EQ(found->tensors[1].offset, tensors[1].offset);
  EXPECT_GT(found->tensors[1].offset, large);
  EXPECT_EQ(found->tensors.back().offset, tensors.back().offset);
}

TEST(make_torch_checkpoint, refuses_what_it_cannot_keep_and_changes_nothing) {
  const auto refused = [](std::vector<tensor_facts> tensors, std::string_view message, errc code = errc::invalid_argument) {
    const auto before = tensors;
    const auto made = make_torch_checkpoint(tensors);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), code);
    EXPECT_TRUE(mentions(made.error(), message)) << made.error().message();
    EXPECT_EQ(tensors, before);
  };
  refused({{"a", tensor_type::u8, {1}}, {"a", tensor_type::u8, {1}}}, "tensor \"a\" appears twice");
  refused({{"a\xff", tensor_type::u8, {1}}}, "is not UTF-8");
  refused({{"a", tensor_type::f4, {2, 3}}}, "tensor \"a\" is of type F4 and its last dimension is odd", errc::unsupported);
  refused({{"a", tensor_type::u8, {~std::uint64_t{0}}}}, "its size in bits does not fit into 64 bits");
  refused({{"a", tensor_type::u8, {std::uint64_t{1} << 60, 7}}, {"b", tensor_type::u8, {1}}}, "tensor \"a\"");
  std::vector<tensor_facts> too_many;
  for (const char* name : {"a", "b", "c", "d", "e"}) too_many.push_back({name, tensor_type::u8, {std::uint64_t{1} << 60}});
  refused(too_many, "would extend past the largest file offset");
  std::vector<tensor_facts> tensors{{"a", tensor_type::u8, {1}}};
  EXPECT_TRUE(mentions(make_torch_checkpoint(tensors, {{"k", "1"}, {"k", "2"}}).error(), "\"k\" appears twice in the metadata"));
  EXPECT_TRUE(mentions(make_torch_checkpoint(tensors, {{"k", "\xff"}}).error(), "is not UTF-8"));
  const auto image = make_torch_checkpoint(tensors);
  ASSERT_TRUE(image);
  const std::vector<std::uint32_t> two(2);
  EXPECT_EQ(image->parts(two).error().code(), errc::invalid_argument);
}

TEST(zip_crc32, is_that_of_zip_in_any_pieces) {
  const std::string text = "123456789";
  const auto bytes = std::as_bytes(std::span(text));
  EXPECT_EQ(zip_crc32(bytes), 0xcbf43926U);
  EXPECT_EQ(zip_crc32({}), 0U);
  std::mt19937_64 random(1);
  std::vector<std::byte> many(1000);
  for (std::byte& each : many) each = static_cast<std::byte>(random());
  std::uint32_t one_by_one = 0;
  for (const std::byte& each : many) one_by_one = zip_crc32({&each, 1}, one_by_one);
  EXPECT_EQ(zip_crc32(many), one_by_one);
  for (std::size_t cut = 0; cut <= many.size(); cut += 37) {
    const auto all = std::span<const std::byte>(many);
    EXPECT_EQ(zip_crc32(all.subspan(cut), zip_crc32(all.first(cut))), one_by_one);
  }
}

// --- the pickle alone

status problem_of(const std::string& pickle) { return tensors::read_pickle(pickle).error(); }

TEST(read_pickle, tells_the_byte_at_which_it_stops_making_sense) {
  const auto refused = [](const std::string& pickle, std::string_view message) {
    const status problem = problem_of(pickle);
    EXPECT_EQ(problem.code(), errc::invalid_argument) << message;
    EXPECT_TRUE(mentions(problem, message)) << problem.message();
  };
  refused("", "not a pickle of protocol 2 or newer");
  refused("\x80\x06N.", "pickle protocol 6 is not supported: only 2 to 5 are");
  refused(pickle_of(""), "values are left on the stack at the end");
  refused(pickle_of("NN"), "values are left on the stack at the end");
  refused(pickle_of("N") + "x", "unexpected bytes after the end");
  refused(pickle_of("(N"), "values are left on the stack at the end");
  refused(pickle_of("NNN\x92"), "at byte 5 of the pickle: unsupported opcode 0x92: only opcodes used for tensors are supported");
  refused(pickle_of("NNN\x93"), "at byte 5 of the pickle: a global's name is not a string");
  refused(pickle_of("\x8c\x02os\x8c\x06system\x93"), "unsupported global os.system: only those used for tensors are allowed");
  refused(
      "\x80\x02X\xff\xff\xff\xff"
      "abc",
      "unexpected end of the pickle");
  refused("\x80\x02X\x01", "unexpected end of the pickle");
  refused(
      "\x80\x02"
      "cmodule",
      "unexpected end of the pickle");
  refused(pickle_of(pickled_text("\xff")), "a string is not UTF-8");
  refused(pickle_of("\x8a\x09" + std::string(9, 'x')), "more than 64 bits");
  refused(pickle_of("t"), "a mark is missing");
  refused(pickle_of("N\x86"), "pops more values than the stack contains");
  refused(pickle_of("N(\x85"), "pops more values than the stack contains");
  refused(pickle_of("q\x01"), "pops more values than the stack contains");
  refused(pickle_of("h\x07"), "value 7 is not in the memo");
  refused(pickle_of("NNa"), "append to a value that is not a list");
  refused(pickle_of("NNNs"), "set an item of a value that is not a dict");
  refused(pickle_of("](NNu"), "add items to a value of the wrong kind");
  refused(pickle_of("}(Nu"), "a key has no value");
  refused(pickle_of("}(NNe"), "add items to a value of the wrong kind");
  refused(pickle_of("NQ"), "invalid reference to a storage");
  refused(pickle_of("(" + pickled_text("module") + "NNNNtQ"), "invalid reference to a storage");
  refused(pickle_of("N)R"), "call of a value that is not callable");
  refused(pickle_of("}Nb"), "set attributes of a value that is not a dict");
  refused(pickle_of("N}b"), "set attributes of a value that is not a dict");
  const std::string storage = "(" + pickled_text("storage") + pickled_name("torch\nFloatStorage") + pickled_text("0") + pickled_text("cpu");
  refused(pickle_of(storage + "J\xff\xff\xff\xfftQ"), "invalid reference to a storage");
  const std::string make = pickled_name("torch._utils\n_rebuild_tensor_v2") + "(" + storage + pickled_number(9) + "tQ";
  refused(pickle_of(make + "tR"), "unexpected arguments for a tensor, not written by torch.save");
  refused(pickle_of(make + "K\x01" + ")NNNtR"), "a tensor's shape or strides are not a tuple");
  refused(pickle_of(make + "K\x01"
                           "J\xff\xff\xff\xff\x85)NNtR"),
          "a tensor's shape or strides are not numbers");
  refused(pickle_of(make + "K\x01" + pickled_tuple({1}) + ")NNtR"), "numbers of strides and dimensions differ");
  const auto many = pickled_tuple(std::vector<std::uint64_t>(65, 1));
  refused(pickle_of(make + "K\x01" + many + many + "NNtR"), "a tensor has 65 dimensions");
}

TEST(read_pickle, every_beginning_of_one_is_refused) {
  std::vector<tensor_facts> tensors{{"a", tensor_type::f32, {2}}, {"b", tensor_type::u64, {2}}};
  const std::string pickle = make_torch_checkpoint(tensors, {{"k", "v"}})->parts({})->front().bytes;
  const std::size_t begin = pickle.find(
      "\x80\x02"
      "ccoll");
  ASSERT_NE(begin, std::string::npos);
  const std::string whole = pickle.substr(begin);
  ASSERT_TRUE(tensors::read_pickle(whole));
  for (std::size_t length = 0; length < whole.size(); ++length) EXPECT_FALSE(tensors::read_pickle(whole.substr(0, length))) << length;
}

}  // namespace
}  // namespace penstock
