#include "cufile/settings.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/child.hpp"
#include "support/temp_dir.hpp"

namespace penstock::cufile {
namespace {

constexpr auto batch_size = CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE;
constexpr auto allow_compat = CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE;

// A machine of its own: an environment and an /etc/cufile.json.
class cufile_settings : public ::testing::Test {
 protected:
  cufile_settings() : book([this](const char* name) { return variable(name); }, etc_file()) {}

  const char* variable(const char* name) const {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  }
  std::string etc_file() const { return directory.file("etc.json"); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(directory.file(name), std::ios::binary) << text;
    return directory.file(name);
  }
  void write_etc(const std::string& text) const { write("etc.json", text); }

  template <class Parameter, class Value>
  Value read(Parameter parameter, Value unset) const {
    EXPECT_EQ(book.get(parameter, unset), CU_FILE_SUCCESS);
    return unset;
  }
  std::size_t number(CUFileSizeTConfigParameter_t parameter) const { return read(parameter, std::size_t{0}); }
  bool flag(CUFileBoolConfigParameter_t parameter) const { return read(parameter, false); }
  std::string word(CUFileStringConfigParameter_t parameter) const { return read(parameter, std::string()); }

  const testing::temp_dir directory;
  std::map<std::string, std::string> environment;
  settings_book book;
};

// What a text says over the defaults, which must be JSON.
settings read_text(const std::string& text) {
  settings values;
  const auto lines = apply_text(text, values);
  EXPECT_TRUE(lines.ok()) << lines.error().message();
  return values;
}

// The one line about one key.
setting_report line_of(const std::string& text) {
  settings values;
  const auto lines = apply_text(text, values);
  if (!lines.ok() || lines->size() != 1) {
    ADD_FAILURE() << text << ": " << (lines.ok() ? "not one line" : lines.error().message());
    return {};
  }
  return lines->front();
}

bool mentions(const std::vector<std::string>& remarks, const std::string& words) {
  return std::ranges::any_of(remarks, [&](const std::string& remark) { return remark.find(words) != std::string::npos; });
}

// --- the table ----------------------------------------------------------------------------------------------------------------

TEST(cufile_keys, each_name_and_alias_occurs_once) {
  std::set<std::string_view> names;
  for (const key& one : all_keys()) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    for (const auto alias : one.aliases) EXPECT_TRUE(alias.empty() || names.insert(alias).second) << alias;
  }
}

TEST(cufile_keys, each_parameter_has_one_key) {
  std::map<key_kind, std::vector<int>> parameters;
  for (const key& one : all_keys()) {
    if (one.parameter >= 0) parameters[one.kind].push_back(one.parameter);
  }
  for (auto& [kind, numbers] : parameters) {
    std::ranges::sort(numbers);
    EXPECT_TRUE(std::ranges::adjacent_find(numbers) == numbers.end());
  }
  EXPECT_EQ(parameters[key_kind::size].size(), size_parameter_count);
  EXPECT_EQ(parameters[key_kind::flag].size(), flag_parameter_count);
  EXPECT_EQ(parameters[key_kind::word].size(), word_parameter_count - 1);  // the log file's path is in the environment only
  EXPECT_EQ(parameters[key_kind::slab_sizes].size() + parameters[key_kind::slab_counts].size(), 4U);
}

TEST(cufile_keys, every_default_lies_in_its_range) {
  const settings defaults;
  for (const key& one : all_keys()) {
    if (one.kind != key_kind::size || one.parameter < 0) continue;
    EXPECT_TRUE(one.range.holds(defaults.sizes[static_cast<std::size_t>(one.parameter)])) << one.name;
  }
}

TEST(cufile_defaults, are_those_of_the_library) {
  const settings values;
  const std::array<std::size_t, size_parameter_count> sizes{0, 128, 4, 8192, 4, 1024, 131072, 1024, 33554432, 128, 4, 5};
  EXPECT_EQ(values.sizes, sizes);
  const std::array<bool, flag_parameter_count> flags{false, true, false, false, true, false, true};
  EXPECT_EQ(values.flags, flags);
  EXPECT_EQ(values[CUFILE_PARAM_LOGGING_LEVEL], "ERROR");
  EXPECT_EQ(values.level(), log_level::error);
  EXPECT_EQ(values[CUFILE_PARAM_LOG_DIR], "");
  EXPECT_EQ(values.posix_pool.sizes_kb, (std::vector<std::size_t>{4, 1024, 16384}));
  EXPECT_EQ(values.posix_pool.counts, (std::vector<std::size_t>{128, 64, 64}));
  EXPECT_EQ(values.gpu_bounce.sizes_kb, (std::vector<std::size_t>{1024, 8192, 16384, 65536}));
  EXPECT_EQ(values.gpu_bounce.counts, (std::vector<std::size_t>{128, 8, 4, 2}));
  EXPECT_EQ(values.log_max_bytes, 32U << 20);
  EXPECT_TRUE(values.log_file.empty());
  EXPECT_TRUE(values.denied.empty());
  EXPECT_TRUE(values.changed.empty());
}

TEST(cufile_levels, survive_their_names_in_any_case) {
  for (int i = 0; i < log_level_count; ++i) {
    const auto level = static_cast<log_level>(i);
    EXPECT_EQ(parse_log_level(to_string(level)), level);
  }
  EXPECT_EQ(parse_log_level("Trace"), log_level::trace);
  EXPECT_FALSE(parse_log_level("LOUD"));
  EXPECT_FALSE(parse_log_level(""));
}

// --- text of a cufile.json ----------------------------------------------------------------------------------------------------

TEST(cufile_text, comments_of_both_kinds_are_skipped) {
  const settings values = read_text("// one\n{ /* two */ \"properties\": { \"io_batchsize\": 16 // three\n } }");
  EXPECT_EQ(values[batch_size], 16U);
}

TEST(cufile_text, nothing_at_all_asks_for_nothing) { EXPECT_EQ(read_text("").sizes, settings().sizes); }

TEST(cufile_text, every_obeyed_key_reaches_its_value) {
  const settings values = read_text(R"({
    "logging": {"dir": "/var/log/app", "level": "debug", "max_file_size_mb": 7},
    "profile": {"cufile_stats": 3},
    "execution": {"max_io_threads": 0, "parallel_io": false},
    "properties": {"io_batchsize": 256, "max_batch_io_timeout_msecs": 1000, "allow_compat_mode": false,
                   "force_compat_mode": true, "allow_system_memory": false},
    "denylist": {"mounts": ["/a", "/b"], "filesystems": ["nfs"]}})");
  EXPECT_EQ(values[CUFILE_PARAM_LOG_DIR], "/var/log/app");
  EXPECT_EQ(values.level(), log_level::debug);
  EXPECT_EQ(values.log_max_bytes, 7U << 20);
  EXPECT_EQ(values[CUFILE_PARAM_PROFILE_STATS], 3U);
  EXPECT_EQ(values[CUFILE_PARAM_EXECUTION_MAX_IO_THREADS], 0U);
  EXPECT_FALSE(values[CUFILE_PARAM_EXECUTION_PARALLEL_IO]);
  EXPECT_EQ(values[batch_size], 256U);
  EXPECT_EQ(values[CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS], 1000U);
  EXPECT_FALSE(values[allow_compat]);
  EXPECT_TRUE(values[CUFILE_PARAM_FORCE_COMPAT_MODE]);
  EXPECT_FALSE(values[CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY]);
  EXPECT_EQ(values.denied.mounts, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(values.denied.filesystems, (std::vector<std::string>{"nfs"}));
}

TEST(cufile_text, older_places_of_a_key_count) {
  EXPECT_EQ(read_text(R"({"profile": {"io_batchsize": 9}})")[batch_size], 9U);
  EXPECT_EQ(read_text(R"({"properties": {"max_batch_io_size": 8}})")[batch_size], 8U);
  EXPECT_FALSE(read_text(R"({"properties": {"use_compat_mode": false}})")[allow_compat]);
  EXPECT_EQ(read_text(R"({"blacklist": {"mounts": ["/old"]}})").denied.mounts, (std::vector<std::string>{"/old"}));
}

TEST(cufile_text, the_name_wins_over_its_older_places) {
  settings values;
  const auto lines = apply_text(R"({"properties": {"io_batchsize": 7, "max_batch_io_size": 8}, "profile": {"io_batchsize": 9}})", values);
  ASSERT_TRUE(lines.ok());
  EXPECT_EQ(values[batch_size], 7U);
  EXPECT_EQ(std::ranges::count(*lines, key_fate::refused, &setting_report::fate), 2);
}

TEST(cufile_text, slab_arrays_are_read_from_either_place) {
  const settings values = read_text(R"({"properties": {
    "posix_pool_slab_size_kb": [8, 16], "posix_pool_slab_count": [2, 1],
    "gpu_bounce_buffer_slab_config": {"slab_size_kb": [64], "slab_count": [3]}}})");
  EXPECT_EQ(values.posix_pool.sizes_kb, (std::vector<std::size_t>{8, 16}));
  EXPECT_EQ(values.posix_pool.counts, (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(values.gpu_bounce.sizes_kb, (std::vector<std::size_t>{64}));
  EXPECT_EQ(values.gpu_bounce.counts, (std::vector<std::size_t>{3}));
  const settings flat = read_text(R"({"properties": {"gpu_bounce_buffer_slab_size_kb": [8], "gpu_bounce_buffer_slab_count": [6]}})");
  EXPECT_EQ(flat.gpu_bounce.sizes_kb, (std::vector<std::size_t>{8}));
  EXPECT_EQ(flat.gpu_bounce.counts, (std::vector<std::size_t>{6}));
}

TEST(cufile_text, slab_sizes_without_as_many_counts_are_refused_together) {
  settings values;
  const auto lines = apply_text(R"({"properties": {"posix_pool_slab_size_kb": [8], "posix_pool_slab_count": [2, 1]}})", values);
  ASSERT_TRUE(lines.ok());
  for (const setting_report& line : *lines) EXPECT_EQ(line.fate, key_fate::refused) << line.key;
  EXPECT_EQ(values.posix_pool.sizes_kb, settings().posix_pool.sizes_kb);
  EXPECT_EQ(values.posix_pool.counts, settings().posix_pool.counts);
}

TEST(cufile_text, slab_arrays_take_whole_numbers_in_reasonable_number) {
  for (const std::string value : {"[]", "[-1, 2, 3]", "[1.5, 2, 3]", "[\"4\", 5, 6]", "4", "{\"a\": 4}", "null"}) {
    EXPECT_EQ(line_of(R"({"properties": {"posix_pool_slab_count": )" + value + "}}").fate, key_fate::refused) << value;
  }
  std::string many = "1";
  for (int i = 0; i < 100; ++i) many += ",1";
  EXPECT_EQ(line_of(R"({"properties": {"posix_pool_slab_count": [)" + many + "]}}").fate, key_fate::refused);
}

TEST(cufile_text, the_log_can_be_without_limit) {
  EXPECT_EQ(read_text(R"({"logging": {"max_file_size_mb": -1}})").log_max_bytes, std::numeric_limits<std::uint64_t>::max());
  for (const std::string value : {"0", "-2", "4097", "1.5", "\"8\"", "true", "[]", "1e30"}) {
    const auto line = line_of(R"({"logging": {"max_file_size_mb": )" + value + "}}");
    EXPECT_EQ(line.fate, key_fate::refused) << value;
    EXPECT_NE(line.remark.find("or -1"), std::string::npos);
  }
}

TEST(cufile_text, sizes_out_of_range_keep_the_default) {
  for (const std::string value : {"0", "257", "-1", "18446744073709551615", "99999999999999999999999", "1e300"}) {
    const std::string text = R"({"properties": {"io_batchsize": )" + value + "}}";
    EXPECT_EQ(read_text(text)[batch_size], 128U) << value;
    EXPECT_EQ(line_of(text).remark, "expected a whole number from 1 to 256") << value;
  }
}

TEST(cufile_text, sizes_that_are_no_multiple_keep_the_default) {
  for (const std::string name : {"max_direct_io_size_kb", "per_buffer_cache_size_kb"}) {
    for (const std::string value : {"63", "65", "100", "16383", "16448"}) {
      const auto line = line_of(R"({"properties": {")" + name + "\": " + value + "}}");
      EXPECT_EQ(line.fate, key_fate::refused) << name << value;
      EXPECT_EQ(line.remark, "expected a multiple of 64 from 64 to 16384");
    }
    EXPECT_NE(line_of(R"({"properties": {")" + name + R"(": 192}})").fate, key_fate::refused);
  }
}

TEST(cufile_text, sizes_are_taken_without_their_unit_in_the_name_too) {
  const settings values = read_text(R"({"properties": {"max_device_cache_size": 256, "per_buffer_cache_size": 128,
    "max_device_pinned_mem_size": 512, "max_direct_io_size": 64}})");
  EXPECT_EQ(values[CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB], 256U);
  EXPECT_EQ(values[CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB], 128U);
  EXPECT_EQ(values[CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB], 512U);
  EXPECT_EQ(values[CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB], 64U);
}

TEST(cufile_text, words_that_are_none_of_the_choices_are_refused_with_them) {
  const std::map<std::string, std::string> expected{
      {"io_priority", "expected default, low, med or high"},
      {"rdma_load_balancing_policy", "expected RoundRobin, FirstFit, MaxMinFit, RoundRobinMaxMin or Randomized"},
      {"rdma_peer_type", "expected peer_mem or dmabuf"},
      {"rdma_transport_type", "expected DC_V1 or EXT_RC_V1"},
  };
  for (const auto& [name, remark] : expected) {
    for (const std::string value : {"", "none of these", "default low"}) {
      const auto line = line_of(R"({"properties": {")" + name + R"(": ")" + value + R"("}})");
      EXPECT_EQ(line.fate, key_fate::refused) << name << value;
      EXPECT_EQ(line.remark, remark);
    }
  }
  EXPECT_EQ(line_of(R"({"logging": {"level": "LOUD"}})").remark, "expected NOTICE, ERROR, WARN, INFO, DEBUG or TRACE");
  EXPECT_EQ(line_of(R"({"properties": {"io_priority": "LOW"}})").fate, key_fate::obeyed);
  EXPECT_EQ(read_text(R"({"properties": {"rdma_transport_type": "EXT_RC_V1"}})")[CUFILE_PARAM_RDMA_TRANSPORT], "EXT_RC_V1");
  EXPECT_EQ(line_of(R"({"properties": {"rdma_dynamic_routing_order": ["SYS_MEM", "GPU"]}})").remark,
            "expected each string to be GPU_MEM_NVLINKS, GPU_MEM, SYS_MEM or P2P");
  EXPECT_EQ(line_of(R"({"properties": {"rdma_dynamic_routing_order": ["SYS_MEM", "P2P"]}})").fate, key_fate::obeyed);
}

TEST(cufile_text, slab_sizes_grow_and_are_whole_pages) {
  for (const std::string value : {"[4, 4, 8]", "[8, 4, 16]", "[4, 6, 8]", "[0, 4, 8]"}) {
    const auto line = line_of(R"({"properties": {"posix_pool_slab_size_kb": )" + value + "}}");
    EXPECT_EQ(line.fate, key_fate::refused) << value;
    EXPECT_EQ(line.remark, "expected multiples of 4 in increasing order");
  }
}

TEST(cufile_text, an_upper_end_of_zero_is_no_bound) {
  EXPECT_EQ(
      read_text(R"({"properties": {"max_device_pinned_mem_size_kb": 99999999999}})")[CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB],
      99999999999U);
  EXPECT_EQ(line_of(R"({"properties": {"max_device_pinned_mem_size_kb": 63}})").fate, key_fate::refused);
}

TEST(cufile_text, wrong_types_are_refused_by_the_name_of_the_key) {
  const std::vector<std::string> all{"null", "true", "1", "-1", "2.5", "\"text\"", "[1]", "[\"a\", 1]", "{}", "{\"a\": []}"};
  const std::map<std::string, std::set<std::string>> right{
      {"\"properties\": {\"io_batchsize\"", {"1"}},      {"\"properties\": {\"allow_compat_mode\"", {"true"}},
      {"\"logging\": {\"dir\"", {"\"text\""}},           {"\"denylist\": {\"mounts\"", {}},
      {"\"fs\": {\"lustre\": {\"mount_table\"", {"{}"}}, {"\"fs\": {\"lustre\": {\"rdma_dev_addr_list\"", {}},
      {"\"properties\": {\"rdma_access_mask\"", {"1"}},  {"\"properties\": {\"rdma_multipath_enabled\"", {"true"}},
  };
  for (const auto& [place, good] : right) {
    for (const std::string& value : all) {
      const std::string text = "{" + place + ": " + value + (place.starts_with("\"fs\"") ? "}}}" : "}}");
      const auto line = line_of(text);
      EXPECT_EQ(line.fate == key_fate::refused, !good.contains(value)) << text;
      EXPECT_NE(line.key.find('.'), std::string::npos);
    }
  }
}

TEST(cufile_text, addresses_numbers_and_tables_are_looked_into) {
  EXPECT_EQ(line_of(R"({"properties": {"rdma_dev_addr_list": ["10.0.0.1", "fe80::1"]}})").fate, key_fate::obeyed);
  EXPECT_EQ(line_of(R"({"properties": {"rdma_dev_addr_list": ["mlx5_0"]}})").remark, "expected a list of IP addresses");
  EXPECT_EQ(line_of(R"({"properties": {"rdma_dc_key": "0xffEEddcc"}})").fate, key_fate::obeyed);
  EXPECT_EQ(line_of(R"({"properties": {"rdma_dc_key": "key"}})").remark, "expected a whole number");
  EXPECT_TRUE(read_text(R"({"properties": {"rdma_dc_key": 4293844428, "rdma_access_mask": "31"}})").changed.empty());
  EXPECT_EQ(line_of(R"({"fs": {"nfs": {"mount_table": {"/a": {"rdma_dev_addr_list": []}}}}})").fate, key_fate::obeyed);
  EXPECT_EQ(line_of(R"({"fs": {"nfs": {"mount_table": {"/a": 1}}}})").remark, "expected an object of objects");
}

TEST(cufile_text, what_differs_from_the_defaults_is_known_by_name) {
  const auto values = read_text(R"({"properties": {"io_batchsize": 128, "max_direct_io_size": 64}, "denylist": {"mounts": ["/a", "/b"]}})");
  const std::map<std::string_view, std::string> expected{{"properties.max_direct_io_size_kb", "64"}, {"denylist.mounts", "/a /b"}};
  EXPECT_EQ(values.changed, expected);
}

TEST(cufile_text, a_word_with_a_zero_byte_is_refused) {
  EXPECT_EQ(line_of(R"({"logging": {"dir": "/tmp\u0000/x"}})").fate, key_fate::refused);
}

TEST(cufile_text, a_section_that_is_no_object_is_refused) {
  for (const std::string value : {"5", "[]", "null", "\"x\""}) {
    const auto line = line_of(R"({"properties": )" + value + "}");
    EXPECT_EQ(line.key, "properties");
    EXPECT_EQ(line.fate, key_fate::refused) << value;
  }
}

TEST(cufile_text, unknown_keys_are_named_and_harmless) {
  EXPECT_EQ(line_of(R"({"properties": {"alow_compat_mode": false}})").fate, key_fate::unknown);
  EXPECT_EQ(line_of(R"({"properties.io_batchsize": 3})").fate, key_fate::unknown);  // a dot is no way into a section
  EXPECT_EQ(read_text(R"({"properties.io_batchsize": 3})")[batch_size], 128U);
  EXPECT_EQ(line_of(R"({"somewhere": {"else": {"entirely": 1}}})").key, "somewhere");
  EXPECT_EQ(line_of(R"({"": 1})").fate, key_fate::unknown);
}

TEST(cufile_text, a_report_says_what_a_key_does_or_that_it_does_nothing) {
  const auto obeyed = line_of(R"({"properties": {"allow_system_memory": false}})");
  EXPECT_EQ(obeyed.key, "properties.allow_system_memory");
  EXPECT_EQ(obeyed.value, "false");
  EXPECT_EQ(obeyed.fate, key_fate::obeyed);
  EXPECT_FALSE(obeyed.remark.empty());
  const auto idle = line_of(R"({"properties": {"prefer_iouring": true}})");
  EXPECT_EQ(idle.fate, key_fate::without_effect);
  EXPECT_EQ(idle.remark, "accepted without effect: io_uring is used if the kernel allows it");
}

TEST(cufile_text, a_report_is_fit_for_a_terminal) {
  const auto line = line_of("{\"a\\u001b[31m\\n\": \"" + std::string(5000, 'x') + "\\u0007\"}");
  EXPECT_EQ(line.key, "a?[31m?");
  EXPECT_LT(line.value.size(), 200U);
  EXPECT_TRUE(std::ranges::none_of(line.value, [](char c) { return static_cast<unsigned char>(c) < ' '; }));
}

TEST(cufile_text, malformed_text_is_an_error_that_names_the_place) {
  settings values;
  const auto lines = apply_text("{\n  \"properties\": {\n    \"io_batchsize\": 16,,\n  }\n}", values);
  ASSERT_FALSE(lines.ok());
  EXPECT_EQ(lines.error().code(), errc::invalid_argument);
  EXPECT_NE(lines.error().message().find("line 3, byte 44"), std::string_view::npos) << lines.error().message();
  EXPECT_EQ(values[batch_size], 128U);
}

TEST(cufile_text, whatever_is_no_object_is_an_error) {
  for (const std::string text : {"[]", "5", "null", "\"x\"", " ", "{", "}", "{\"a\"", "{\"a\": 1e999}", "{\"a\": 1} {\"b\": 2}", "/*",
                                 "// only", "{\"a\": \"\xff\xfe\"}", "{'a': 1}", "{\"a\": tru}", "\xef\xbb"}) {
    settings values;
    const auto lines = apply_text(text, values);
    EXPECT_FALSE(lines.ok()) << text;
    EXPECT_EQ(values.sizes, settings().sizes);
  }
}

TEST(cufile_text, deep_nesting_is_unknown_and_deeper_nesting_an_error) {
  const auto nested = [](std::size_t depth) { return "{\"a\": " + std::string(depth, '[') + std::string(depth, ']') + "}"; };
  EXPECT_EQ(line_of(nested(100)).fate, key_fate::unknown);
  settings values;
  EXPECT_FALSE(apply_text(nested(100000), values).ok());
  EXPECT_FALSE(apply_text(std::string(500000, '['), values).ok());
}

TEST(cufile_text, the_last_of_two_equal_keys_counts) {
  EXPECT_EQ(read_text(R"({"properties": {"io_batchsize": 3, "io_batchsize": 4}})")[batch_size], 4U);
}

// --- the file -----------------------------------------------------------------------------------------------------------------

TEST_F(cufile_settings, a_missing_file_means_the_defaults) {
  const opening outcome = book.open();
  EXPECT_TRUE(outcome.problem.ok());
  EXPECT_TRUE(outcome.remarks.empty());
  EXPECT_TRUE(book.is_open());
  EXPECT_EQ(number(batch_size), 128U);
}

TEST_F(cufile_settings, the_file_in_etc_is_read) {
  write_etc(R"({"properties": {"io_batchsize": 20}})");
  EXPECT_TRUE(book.open().problem.ok());
  EXPECT_EQ(number(batch_size), 20U);
}

TEST_F(cufile_settings, the_named_file_is_read_in_place_of_the_one_in_etc) {
  write_etc(R"({"properties": {"io_batchsize": 20, "allow_compat_mode": false}})");
  environment["CUFILE_ENV_PATH_JSON"] = write("mine.json", R"({"properties": {"io_batchsize": 30}})");
  EXPECT_TRUE(book.open().problem.ok());
  EXPECT_EQ(number(batch_size), 30U);
  EXPECT_TRUE(flag(allow_compat));
}

TEST_F(cufile_settings, an_empty_file_name_names_none) {
  write_etc(R"({"properties": {"io_batchsize": 20}})");
  environment["CUFILE_ENV_PATH_JSON"] = "";
  EXPECT_TRUE(book.open().problem.ok());
  EXPECT_EQ(number(batch_size), 20U);
}

TEST_F(cufile_settings, a_named_file_that_is_missing_is_remarked_on) {
  write_etc(R"({"properties": {"io_batchsize": 20}})");
  environment["CUFILE_ENV_PATH_JSON"] = directory.file("nowhere.json");
  const opening outcome = book.open();
  EXPECT_TRUE(outcome.problem.ok());
  EXPECT_TRUE(mentions(outcome.remarks, "nowhere.json"));
  EXPECT_EQ(number(batch_size), 128U);
}

TEST_F(cufile_settings, a_malformed_file_is_a_problem_and_the_rest_holds) {
  write_etc("{\n\"properties\": oops");
  environment["CUFILE_LOGFILE_PATH"] = "/tmp/some.log";
  book.set(batch_size, 40);
  const opening outcome = book.open();
  EXPECT_EQ(outcome.problem.code(), errc::invalid_argument);
  EXPECT_NE(outcome.problem.message().find(etc_file()), std::string_view::npos);
  EXPECT_NE(outcome.problem.message().find("line 2"), std::string_view::npos);
  EXPECT_TRUE(book.is_open());
  EXPECT_EQ(number(batch_size), 40U);
  EXPECT_EQ(book.values().log_file, "/tmp/some.log");  // so the problem can be logged
}

TEST_F(cufile_settings, a_named_file_that_cannot_be_read_is_a_problem) {
  environment["CUFILE_ENV_PATH_JSON"] = directory.path().string();
  EXPECT_EQ(book.open().problem.code(), errc::not_a_file);
  book.close();
  const std::string pipe = directory.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  environment["CUFILE_ENV_PATH_JSON"] = pipe;
  EXPECT_EQ(book.open().problem.code(), errc::not_a_file);
}

TEST_F(cufile_settings, permission_decides_for_a_named_file_only) {
  write_etc("{}");
  ASSERT_EQ(::chmod(etc_file().c_str(), 0), 0);
  // Root may read every file, so the child is somebody else.
  const int outcome = testing::run_in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 1;
    const opening unnamed = book.open();
    if (!unnamed.problem.ok() || !mentions(unnamed.remarks, etc_file())) return 2;
    book.close();
    environment["CUFILE_ENV_PATH_JSON"] = etc_file();
    return book.open().problem.code() == errc::permission_denied ? 0 : 3;
  });
  if (outcome == 1) GTEST_SKIP() << "user ids cannot be set here";
  EXPECT_EQ(outcome, 0);
}

TEST_F(cufile_settings, an_endless_or_huge_file_is_a_problem) {
  environment["CUFILE_ENV_PATH_JSON"] = "/dev/zero";
  EXPECT_EQ(book.open().problem.code(), errc::invalid_argument);
  book.close();
  environment["CUFILE_ENV_PATH_JSON"] = write("huge.json", "{}" + std::string(max_settings_file_bytes, ' '));
  EXPECT_EQ(book.open().problem.code(), errc::invalid_argument);
  book.close();
  environment["CUFILE_ENV_PATH_JSON"] = write("large.json", "{}" + std::string(max_settings_file_bytes - 2, ' '));
  EXPECT_TRUE(book.open().problem.ok());
}

TEST_F(cufile_settings, the_null_device_asks_for_nothing) {
  environment["CUFILE_ENV_PATH_JSON"] = "/dev/null";
  const opening outcome = book.open();
  EXPECT_TRUE(outcome.problem.ok());
  EXPECT_TRUE(outcome.remarks.empty());
}

TEST_F(cufile_settings, values_not_taken_from_the_file_are_remarked_on) {
  write_etc(R"({"properties": {"io_batchsize": 1000, "nonsense": 1, "prefer_iouring": true}})");
  const opening outcome = book.open();
  EXPECT_TRUE(outcome.problem.ok());
  EXPECT_EQ(outcome.remarks.size(), 3U);
  EXPECT_TRUE(mentions(outcome.remarks, "properties.prefer_iouring = true: accepted without effect"));
  EXPECT_TRUE(mentions(outcome.remarks, "properties.io_batchsize = 1000"));
  EXPECT_TRUE(mentions(outcome.remarks, "properties.nonsense"));
  EXPECT_EQ(number(batch_size), 128U);
}

TEST_F(cufile_settings, remarks_are_limited_in_number) {
  std::string text = "{\"x\": 1";
  for (int i = 0; i < 5000; ++i) text += ",\"k" + std::to_string(i) + "\": 1";
  write_etc(text + "}");
  const opening outcome = book.open();
  EXPECT_EQ(outcome.remarks.size(), max_remarks + 1);
  EXPECT_EQ(outcome.remarks.back(), "and 4937 more");
}

TEST_F(cufile_settings, report_tells_about_each_key_of_a_file) {
  const auto lines = report(write("mine.json", R"({"properties": {"io_batchsize": 30, "typo": 1}, "logging": {"level": "LOUD"}})"));
  ASSERT_TRUE(lines.ok());
  ASSERT_EQ(lines->size(), 3U);
  EXPECT_EQ(report(directory.file("nowhere.json")).error().code(), errc::not_found);
  const auto broken = report(write("broken.json", "{"));
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message().find("broken.json"), std::string_view::npos);
}

// --- precedence ---------------------------------------------------------------------------------------------------------------

TEST_F(cufile_settings, calls_win_over_the_environment_over_the_file_over_the_default) {
  EXPECT_TRUE(book.open().problem.ok());
  EXPECT_TRUE(flag(allow_compat));
  book.close();
  write_etc(R"({"properties": {"allow_compat_mode": false}})");
  book.open();
  EXPECT_FALSE(flag(allow_compat));
  book.close();
  environment["CUFILE_ALLOW_COMPAT_MODE"] = "true";
  book.open();
  EXPECT_TRUE(flag(allow_compat));
  book.close();
  EXPECT_EQ(book.set(allow_compat, false), CU_FILE_SUCCESS);
  book.open();
  EXPECT_FALSE(flag(allow_compat));
}

TEST_F(cufile_settings, every_variable_reaches_its_value) {
  environment = {{"CUFILE_LOGFILE_PATH", "/tmp/a.log"},     {"CUFILE_LOGGING_LEVEL", "TRACE"},
                 {"CUFILE_LOGFILE_MAX_SIZE_MB", "2"},       {"CUFILE_ALLOW_COMPAT_MODE", "false"},
                 {"CUFILE_FORCE_COMPAT_MODE", "1"},         {"CUFILE_USE_PCIP2PDMA", "TRUE"},
                 {"CUFILE_SKIP_TOPOLOGY_DETECTION", "yes"}, {"CUFILE_NVTX", "on"}};
  const opening outcome = book.open();
  EXPECT_TRUE(outcome.remarks.empty());
  const settings values = book.values();
  EXPECT_EQ(values.log_file, "/tmp/a.log");
  EXPECT_EQ(values.level(), log_level::trace);
  EXPECT_EQ(values.log_max_bytes, 2U << 20);
  EXPECT_FALSE(values[allow_compat]);
  EXPECT_TRUE(values[CUFILE_PARAM_FORCE_COMPAT_MODE]);
  EXPECT_TRUE(values[CUFILE_PARAM_USE_PCIP2PDMA]);
  EXPECT_TRUE(values[CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION]);
  EXPECT_TRUE(values[CUFILE_PARAM_PROFILE_NVTX]);
}

TEST_F(cufile_settings, variables_of_nvidias_library_are_checked) {
  environment = {{"CUFILE_IB_SL", "3"}, {"CUFILE_DMABUF_ENABLE", "true"}};
  EXPECT_TRUE(book.open().remarks.empty());
  book.close();
  environment = {{"CUFILE_IB_SL", "16"}, {"CUFILE_DMABUF_ENABLE", "maybe"}};
  const auto remarks = book.open().remarks;
  EXPECT_EQ(remarks.size(), 2U);
  EXPECT_TRUE(mentions(remarks, "CUFILE_IB_SL=16: expected a whole number from 0 to 15"));
}

TEST_F(cufile_settings, a_key_that_does_nothing_is_remarked_on_however_it_was_set) {
  EXPECT_EQ(book.set(CUFILE_PARAM_PREFER_IO_URING, true), CU_FILE_SUCCESS);
  EXPECT_EQ(book.set(CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH, 64), CU_FILE_SUCCESS);
  EXPECT_EQ(book.set(CUFILE_PARAM_STREAM_MEMOPS_BYPASS, false), CU_FILE_SUCCESS);
  const auto remarks = book.open().remarks;
  EXPECT_EQ(remarks.size(), 2U);
  EXPECT_TRUE(mentions(remarks, "properties.prefer_iouring = true: accepted without effect: io_uring"));
  EXPECT_TRUE(mentions(remarks, "execution.max_io_queue_depth = 64"));
}

TEST_F(cufile_settings, a_malformed_variable_is_passed_over_and_remarked_on) {
  write_etc(R"({"logging": {"level": "INFO", "max_file_size_mb": 3}, "properties": {"allow_compat_mode": false}})");
  environment = {{"CUFILE_LOGGING_LEVEL", "LOUD"}, {"CUFILE_LOGFILE_MAX_SIZE_MB", "-5"}, {"CUFILE_ALLOW_COMPAT_MODE", "maybe"}};
  const opening outcome = book.open();
  EXPECT_EQ(outcome.remarks.size(), 3U);
  EXPECT_TRUE(mentions(outcome.remarks, "CUFILE_ALLOW_COMPAT_MODE=maybe"));
  EXPECT_EQ(book.values().level(), log_level::info);
  EXPECT_EQ(book.values().log_max_bytes, 3U << 20);
  EXPECT_FALSE(flag(allow_compat));
}

TEST_F(cufile_settings, an_empty_variable_is_not_set) {
  environment = {{"CUFILE_LOGGING_LEVEL", ""}, {"CUFILE_ALLOW_COMPAT_MODE", ""}};
  EXPECT_TRUE(book.open().remarks.empty());
  EXPECT_EQ(book.values().level(), log_level::error);
  EXPECT_TRUE(flag(allow_compat));
}

// --- calls --------------------------------------------------------------------------------------------------------------------

TEST_F(cufile_settings, a_closed_book_answers_what_is_staged_or_the_default) {
  write_etc(R"({"properties": {"io_batchsize": 20}})");
  EXPECT_EQ(number(batch_size), 128U);
  EXPECT_EQ(book.set(batch_size, 16), CU_FILE_SUCCESS);
  EXPECT_EQ(book.set(batch_size, 17), CU_FILE_SUCCESS);
  EXPECT_EQ(number(batch_size), 17U);
}

TEST_F(cufile_settings, a_number_that_its_key_does_not_take_is_refused_where_it_is_set) {
  for (const key& where : all_keys()) {
    if (where.kind != key_kind::size || where.parameter < 0) continue;
    const auto parameter = static_cast<CUFileSizeTConfigParameter_t>(where.parameter);
    if (parameter == CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS) continue;
    const auto before = number(parameter);
    std::vector<std::size_t> wrong;
    if (where.range.least > 0) wrong.push_back(where.range.least - 1);
    if (where.range.most > 0 && where.range.most < std::numeric_limits<std::size_t>::max()) wrong.push_back(where.range.most + 1);
    if (where.step > 1) wrong.push_back(std::max(where.range.least, where.step) + 1);
    for (const auto value : wrong) {
      EXPECT_EQ(book.set(parameter, value), CU_FILE_DRIVER_UNSUPPORTED_LIMIT) << where.name << " " << value;
      EXPECT_EQ(number(parameter), before) << where.name;
    }
  }
}

// As cuda-python's tests do.
TEST_F(cufile_settings, a_time_out_of_range_gives_way_to_the_configuration_at_open) {
  write_etc(R"({"properties": {"max_batch_io_timeout_msecs": 20}})");
  EXPECT_EQ(book.set(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS, 5000), CU_FILE_SUCCESS);
  EXPECT_EQ(number(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS), 5000U);
  const opening outcome = book.open();
  EXPECT_TRUE(outcome.problem.ok());
  EXPECT_TRUE(mentions(outcome.remarks, "properties.max_batch_io_timeout_msecs = 5000"));
  EXPECT_EQ(number(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS), 20U);
}

TEST_F(cufile_settings, a_level_that_is_none_gives_way_at_open) {
  book.set(CUFILE_PARAM_LOGGING_LEVEL, "LOUD");
  EXPECT_EQ(word(CUFILE_PARAM_LOGGING_LEVEL), "LOUD");
  EXPECT_EQ(book.open().remarks.size(), 1U);
  EXPECT_EQ(word(CUFILE_PARAM_LOGGING_LEVEL), "ERROR");
}

TEST_F(cufile_settings, every_flag_and_word_survives_the_round_trip) {
  for (std::size_t i = 0; i < flag_parameter_count; ++i) {
    const auto parameter = static_cast<CUFileBoolConfigParameter_t>(i);
    EXPECT_EQ(book.set(parameter, !settings()[parameter]), CU_FILE_SUCCESS);
  }
  const std::array<std::string, word_parameter_count> words{"TRACE", "/log", "/directory", "EXT_RC_V1"};
  for (std::size_t i = 0; i < word_parameter_count; ++i) {
    EXPECT_EQ(book.set(static_cast<CUFileStringConfigParameter_t>(i), words[i]), CU_FILE_SUCCESS);
  }
  book.open();
  for (std::size_t i = 0; i < flag_parameter_count; ++i) {
    const auto parameter = static_cast<CUFileBoolConfigParameter_t>(i);
    EXPECT_EQ(flag(parameter), !settings()[parameter]);
  }
  for (std::size_t i = 0; i < word_parameter_count; ++i) EXPECT_EQ(word(static_cast<CUFileStringConfigParameter_t>(i)), words[i]);
}

TEST_F(cufile_settings, an_open_book_takes_nothing) {
  book.open();
  EXPECT_EQ(book.set(batch_size, 16), CU_FILE_DRIVER_ALREADY_OPEN);
  EXPECT_EQ(book.set(allow_compat, false), CU_FILE_DRIVER_ALREADY_OPEN);
  EXPECT_EQ(book.set(CUFILE_PARAM_LOG_DIR, "/tmp"), CU_FILE_DRIVER_ALREADY_OPEN);
  EXPECT_EQ(book.set(slab_pool::posix, {{1}, {1}}), CU_FILE_DRIVER_ALREADY_OPEN);
  EXPECT_EQ(number(batch_size), 128U);
}

TEST_F(cufile_settings, opening_twice_changes_nothing) {
  book.set(batch_size, 16);
  book.open();
  write_etc(R"({"properties": {"io_batchsize": 20}})");
  EXPECT_TRUE(book.open().problem.ok());
  EXPECT_EQ(number(batch_size), 16U);
}

TEST_F(cufile_settings, open_consumes_what_is_staged) {
  book.set(batch_size, 16);
  book.open();
  EXPECT_EQ(number(batch_size), 16U);
  book.close();
  EXPECT_EQ(number(batch_size), 128U);
  book.open();
  EXPECT_EQ(number(batch_size), 128U);
}

TEST_F(cufile_settings, close_ends_what_is_live_and_what_is_staged) {
  write_etc(R"({"properties": {"io_batchsize": 20}})");
  book.open();
  book.close();
  EXPECT_FALSE(book.is_open());
  EXPECT_EQ(number(batch_size), 128U);
  book.set(batch_size, 16);
  book.close();
  EXPECT_EQ(number(batch_size), 128U);
}

TEST_F(cufile_settings, parameters_that_do_not_exist_are_refused) {
  const auto no_size = static_cast<CUFileSizeTConfigParameter_t>(size_parameter_count);
  const auto no_flag = static_cast<CUFileBoolConfigParameter_t>(flag_parameter_count);
  std::size_t size = 7;
  bool flag = true;
  size_range range{3, 4};
  EXPECT_EQ(book.set(no_size, 1), CU_FILE_INVALID_VALUE);
  EXPECT_EQ(book.get(no_size, size), CU_FILE_INVALID_VALUE);
  EXPECT_EQ(book.set(no_flag, true), CU_FILE_INVALID_VALUE);
  EXPECT_EQ(book.get(no_flag, flag), CU_FILE_INVALID_VALUE);
  EXPECT_EQ(settings_book::range(no_size, range), CU_FILE_INVALID_VALUE);
  EXPECT_EQ(size, 7U);
  EXPECT_EQ(range.least, 3U);
}

TEST(cufile_ranges, are_those_of_the_library) {
  const std::array<size_range, size_parameter_count> expected{{{},
                                                               {1, 256},
                                                               {0, 32},
                                                               {4, 4294967295},
                                                               {0, 8},
                                                               {64, 16384},
                                                               {0, 0},
                                                               {64, 16384},
                                                               {64, 0},
                                                               {1, 256},
                                                               {4, 18014398509481980},
                                                               {1, 1000}}};
  for (std::size_t i = 1; i < size_parameter_count; ++i) {
    size_range range;
    EXPECT_EQ(settings_book::range(static_cast<CUFileSizeTConfigParameter_t>(i), range), CU_FILE_SUCCESS) << i;
    EXPECT_EQ(range.least, expected[i].least) << i;
    EXPECT_EQ(range.most, expected[i].most) << i;
  }
}

TEST(cufile_ranges, the_statistics_level_has_none_to_tell) {
  size_range range;
  EXPECT_EQ(settings_book::range(CUFILE_PARAM_PROFILE_STATS, range), CU_FILE_INVALID_VALUE);
}

TEST_F(cufile_settings, slab_arrays_are_taken_as_they_are) {
  const std::vector<std::size_t> sizes{4096, 65536, 1048576, 16777216};
  const std::vector<std::size_t> counts{10, 0, 3, 2};
  EXPECT_EQ(book.set(slab_pool::posix, {sizes, counts}), CU_FILE_SUCCESS);
  book.open();
  std::vector<std::size_t> got_sizes(4);
  std::vector<std::size_t> got_counts(4);
  EXPECT_EQ(book.get(slab_pool::posix, got_sizes, got_counts), CU_FILE_SUCCESS);
  EXPECT_EQ(got_sizes, sizes);
  EXPECT_EQ(got_counts, counts);
  EXPECT_EQ(book.get(slab_pool::gpu_bounce, got_sizes, got_counts), CU_FILE_SUCCESS);
  EXPECT_EQ(got_sizes, settings().gpu_bounce.sizes_kb);
}

TEST_F(cufile_settings, slab_arrays_are_read_at_their_very_length) {
  for (const std::size_t length : {2U, 4U}) {
    std::vector<std::size_t> sizes(length, 7);
    std::vector<std::size_t> counts(length, 7);
    EXPECT_EQ(book.get(slab_pool::posix, sizes, counts), CU_FILE_INVALID_VALUE);
    EXPECT_EQ(sizes, std::vector<std::size_t>(length, 7));
  }
}

TEST_F(cufile_settings, empty_or_uneven_slab_arrays_are_refused) {
  EXPECT_EQ(book.set(slab_pool::posix, {}), CU_FILE_INVALID_VALUE);
  EXPECT_EQ(book.set(slab_pool::posix, {{1, 2}, {1}}), CU_FILE_INVALID_VALUE);
}

// --- the log file -------------------------------------------------------------------------------------------------------------

TEST_F(cufile_settings, no_log_file_unless_one_is_asked_for) {
  book.open();
  EXPECT_TRUE(book.values().log_file.empty());
}

TEST_F(cufile_settings, the_log_directory_holds_cufile_log) {
  write_etc(R"({"logging": {"dir": "/var/log"}})");
  book.open();
  EXPECT_EQ(book.values().log_file, "/var/log/cufile.log");
  book.close();
  book.set(CUFILE_PARAM_LOG_DIR, "/srv/");
  book.open();
  EXPECT_EQ(book.values().log_file, "/srv/cufile.log");
}

TEST_F(cufile_settings, the_log_path_wins_over_the_log_directory) {
  write_etc(R"({"logging": {"dir": "/var/log"}})");
  environment["CUFILE_LOGFILE_PATH"] = "/tmp/a.log";
  book.open();
  EXPECT_EQ(book.values().log_file, "/tmp/a.log");
  book.close();
  book.set(CUFILE_PARAM_ENV_LOGFILE_PATH, "/tmp/b.log");
  book.open();
  EXPECT_EQ(book.values().log_file, "/tmp/b.log");
}

TEST_F(cufile_settings, an_empty_log_path_is_not_set) {
  write_etc(R"({"logging": {"dir": "/var/log"}})");
  environment["CUFILE_LOGFILE_PATH"] = "";
  book.open();
  EXPECT_EQ(book.values().log_file, "/var/log/cufile.log");
}

TEST_F(cufile_settings, the_log_path_can_be_read_once_it_was_given) {
  std::string path = "untouched";
  EXPECT_EQ(book.get(CUFILE_PARAM_ENV_LOGFILE_PATH, path), CU_FILE_INVALID_VALUE);
  book.open();
  EXPECT_EQ(book.get(CUFILE_PARAM_ENV_LOGFILE_PATH, path), CU_FILE_INVALID_VALUE);
  EXPECT_EQ(path, "untouched");
  book.close();
  environment["CUFILE_LOGFILE_PATH"] = "";  // it exists, which is enough
  EXPECT_EQ(word(CUFILE_PARAM_ENV_LOGFILE_PATH), "");
  environment["CUFILE_LOGFILE_PATH"] = "/tmp/a.log";
  EXPECT_EQ(word(CUFILE_PARAM_ENV_LOGFILE_PATH), "/tmp/a.log");
  environment.clear();
  book.set(CUFILE_PARAM_ENV_LOGFILE_PATH, "/tmp/b.log");
  EXPECT_EQ(word(CUFILE_PARAM_ENV_LOGFILE_PATH), "/tmp/b.log");
  book.open();
  EXPECT_EQ(word(CUFILE_PARAM_ENV_LOGFILE_PATH), "/tmp/b.log");
}

// --- threads ------------------------------------------------------------------------------------------------------------------

TEST_F(cufile_settings, threads_may_set_read_open_and_close_at_once) {
  write_etc(R"({"properties": {"io_batchsize": 20}})");
  std::atomic<int> strange{0};
  const auto worker = [&](std::size_t mine) {
    for (int round = 0; round < 200; ++round) {
      std::size_t value = 0;
      book.set(batch_size, mine);
      book.open();
      if (book.get(batch_size, value) != CU_FILE_SUCCESS || value == 0) ++strange;
      if (book.values().posix_pool.sizes_kb.size() != 3) ++strange;
      book.close();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i <= 4; ++i) threads.emplace_back(worker, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(strange, 0);
}

}  // namespace
}  // namespace penstock::cufile
