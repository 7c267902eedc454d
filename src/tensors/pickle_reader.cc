#include "tensors/pickle_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/printable.hpp"
#include "tensors/checks.hpp"

namespace penstock::tensors {

namespace {

// A tensor takes about 25 values.
constexpr std::size_t most_values = std::size_t{1} << 24;
constexpr std::size_t most_tensors = std::size_t{1} << 20;
constexpr std::size_t most_dimensions = 64;  // PyTorch's limit

constexpr std::string_view ordered_dict = "collections\nOrderedDict", torch_size = "torch\nSize";
constexpr std::string_view tensor_v2 = "torch._utils\n_rebuild_tensor_v2", tensor_v3 = "torch._utils\n_rebuild_tensor_v3";
constexpr std::string_view parameter = "torch._utils\n_rebuild_parameter";
// Types that torch.save writes but safetensors lacks. Reported with the tensor's name.
constexpr std::array<std::string_view, 7> foreign_types{
    "torch\nComplexDoubleStorage", "torch\nQUInt8Storage",   "torch\nQInt8Storage", "torch\nQInt32Storage",
    "torch\nQUInt4x2Storage",      "torch\nQUInt2x4Storage", "torch\ncomplex32",
};

bool is_type(std::string_view name) {
  return name == untyped_storage || type_of_name(name) || std::ranges::find(foreign_types, name) != foreign_types.end();
}

// NumPy scalars. They are not tensors, so their values are not read.
constexpr std::string_view numpy_scalar = "numpy._core.multiarray\nscalar", old_numpy_scalar = "numpy.core.multiarray\nscalar";
constexpr std::string_view numpy_dtype = "numpy\ndtype", encode = "_codecs\nencode";
constexpr std::string_view made_dtype = "numpy\ndtype object", made_scalar = "numpy\nscalar";

constexpr std::array others{ordered_dict, torch_size, tensor_v2, tensor_v3, parameter, numpy_scalar, old_numpy_scalar, numpy_dtype, encode};

bool is_known(std::string_view name) { return is_type(name) || std::ranges::find(others, name) != others.end(); }

// Returns the same name with static lifetime.
std::optional<std::string_view> known_name(std::string_view name) {
  for (const std::span<const std::string_view> each :
       {std::span<const std::string_view>(others), std::span<const std::string_view>(foreign_types)}) {
    if (const auto found = std::ranges::find(each, name); found != each.end()) return *found;
  }
  if (name == untyped_storage) return untyped_storage;
  return lasting_type_name(name);
}

// Returns "torch.FloatStorage", shortened and safe to print.
std::string dotted(std::string_view name) {
  constexpr std::size_t most = 200;
  std::string text(name.substr(0, most));
  std::ranges::replace(text, '\n', '.');
  return printable_text(std::move(text));
}

// Each step returns false on failure; problem() then returns the reason.
class pickle_reader {
 public:
  explicit pickle_reader(std::string_view pickle) : pickle_(pickle) {
    constexpr std::array constants{pickle_kind::none, pickle_kind::boolean, pickle_kind::boolean, pickle_kind::tuple};
    for (const pickle_kind each : constants) made_.nodes.push_back({.kind = each});
    made_.nodes[true_value].number = 1;
  }

  bool read_all() {
    if (pickle_.size() < 2 || pickle_[0] != '\x80') return fail("not a pickle of protocol 2 or newer");
    if (pickle_[1] < 2 || pickle_[1] > 5)
      return fail(fmt::format("pickle protocol {} is not supported: only 2 to 5 are", static_cast<unsigned char>(pickle_[1])));
    at_ = 2;
    while (!stopped_) {
      begin_ = at_;
      std::string_view opcode;
      if (!bytes(1, opcode) || !step(opcode[0])) return false;
    }
    return true;
  }
  [[nodiscard]] const status& problem() const { return problem_; }
  pickle_content take() { return std::move(made_); }

 private:
  static constexpr pickle_value none_value = 0, false_value = 1, true_value = 2, empty_tuple = 3;

  bool step(char opcode) {
    switch (opcode) {
      case '.':
        return stop();
      case '(':
        return mark();
      case 'N':
        return push(none_value);
      case '\x88':
        return push(true_value);
      case '\x89':
        return push(false_value);
      case ')':
        return push(empty_tuple);
      case '}':
        return push_new({.kind = pickle_kind::dict});
      case ']':
        return push_new({.kind = pickle_kind::list});
      case 'K':
        return integer(1);
      case 'M':
        return integer(2);
      case 'J':
        return signed_integer(4);
      case '\x8a':
        return long_integer();
      case 'G':
        return real();
      case 'X':
        return text(4);
      case 'T':
        return text(4);
      case 'U':
        return text(1);
      case 'c':
        return name();
      case 't':
        return tuple_to_mark();
      case '\x85':
        return tuple_of(1);
      case '\x86':
        return tuple_of(2);
      case '\x87':
        return tuple_of(3);
      case 'a':
        return append(1);
      case 'e':
        return append_to_mark(pickle_kind::list);
      case 's':
        return set_item();
      case 'u':
        return append_to_mark(pickle_kind::dict);
      case 'q':
        return put(1);
      case 'r':
        return put(4);
      case 'h':
        return get(1);
      case 'j':
        return get(4);
      case 'Q':
        return persistent();
      case 'R':
        return reduce();
      case 'b':
        return build();
      // Protocol 3: bytes. They are not part of tensors.
      case 'B':
        return skip_bytes(4);
      case 'C':
        return skip_bytes(1);
      // Protocol 4 and newer.
      case '\x95':
        return frame();
      case '\x8c':
        return text(1);
      case '\x8d':
        return text(8);
      case '\x93':
        return name_of_texts();
      case '\x94':
        return remember(static_cast<std::uint32_t>(memo_.size()));
      default:
        return fail(
            fmt::format("unsupported opcode 0x{:02x}: only opcodes used for tensors are supported", static_cast<unsigned char>(opcode)));
    }
  }

  // --- primitives

  bool bytes(std::uint64_t count, std::string_view& to) {
    if (pickle_.size() - at_ < count) return fail("unexpected end of the pickle");
    to = pickle_.substr(at_, count);
    at_ += count;
    return true;
  }
  bool number(std::size_t count, std::uint64_t& to) {
    std::string_view digits;
    if (!bytes(count, digits)) return false;
    to = 0;
    for (std::size_t i = count; i-- > 0;) to = to << 8 | static_cast<unsigned char>(digits[i]);
    return true;
  }
  bool line(std::string_view& to) {
    const auto end = pickle_.find('\n', at_);
    if (end == std::string_view::npos) return fail("unexpected end of the pickle");
    to = pickle_.substr(at_, end - at_);
    at_ = end + 1;
    return true;
  }

  // --- the stack

  bool push(pickle_value value) {
    stack_.push_back(value);
    return true;
  }
  bool push_new(const pickle_node& node) {
    if (made_.nodes.size() >= most_values) return fail(fmt::format("contains more than {} values", most_values));
    made_.nodes.push_back(node);
    return push(static_cast<pickle_value>(made_.nodes.size() - 1));
  }
  // Only values above the last mark may be popped.
  [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  bool has(std::size_t count) { return stack_.size() - floor() >= count || fail("pops more values than the stack contains"); }
  pickle_value pop() {
    const pickle_value value = stack_.back();
    stack_.pop_back();
    return value;
  }
  bool mark() {
    marks_.push_back(stack_.size());
    return true;
  }
  // Pops the values above the last mark, and the mark.
  bool pop_to_mark(std::vector<pickle_value>& to) {
    if (marks_.empty()) return fail("a mark is missing");
    to.assign(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return true;
  }
  [[nodiscard]] pickle_node& node(pickle_value value) { return made_.nodes[value]; }
  [[nodiscard]] bool is(pickle_value value, pickle_kind kind) { return node(value).kind == kind; }
  std::vector<pickle_value>& items_for(pickle_value value) {
    if (node(value).extra == 0) {
      made_.items.emplace_back();
      node(value).extra = static_cast<std::uint32_t>(made_.items.size());
    }
    return made_.items[node(value).extra - 1];
  }

  // --- opcodes

  bool stop() {
    if (!marks_.empty() || stack_.size() != 1) return fail("values are left on the stack at the end");
    if (at_ != pickle_.size()) return fail("unexpected bytes after the end");
    made_.root = stack_.back();
    return stopped_ = true;
  }
  bool push_integer(std::int64_t value) { return push_new({.kind = pickle_kind::integer, .number = value}); }
  bool integer(std::size_t count) {
    std::uint64_t value = 0;
    return number(count, value) && push_integer(static_cast<std::int64_t>(value));
  }
  // Reads a little-endian integer of count bytes, sign-extended.
  bool signed_integer(std::size_t count) {
    std::uint64_t value = 0;
    if (!number(count, value)) return false;
    const unsigned unused = 64 - 8 * static_cast<unsigned>(count);
    return push_integer(count == 0 ? 0 : static_cast<std::int64_t>(value << unused) >> unused);
  }
  bool long_integer() {
    std::uint64_t count = 0;
    if (!number(1, count)) return false;
    return count <= 8 ? signed_integer(count) : fail("an integer has more than 64 bits");
  }
  bool real() {
    std::string_view ignored;
    return bytes(8, ignored) && push_new({.kind = pickle_kind::real});
  }
  bool text(std::size_t length_bytes) {
    std::uint64_t length = 0;
    std::string_view found;
    if (!number(length_bytes, length) || !bytes(length, found)) return false;
    if (!is_utf8(found)) return fail("a string is not UTF-8");
    return push_new({.kind = pickle_kind::text, .text = found});
  }
  bool name() {
    const std::size_t begin = at_;
    std::string_view module, called;
    if (!line(module) || !line(called)) return false;
    const auto found = pickle_.substr(begin, at_ - begin - 1);
    if (!is_known(found))
      return fail(fmt::format("unsupported global {}: only those used for tensors are allowed; nothing was executed", dotted(found)));
    return push_new({.kind = pickle_kind::name, .text = found});
  }

  bool skip_bytes(std::size_t length_bytes) {
    std::uint64_t length = 0;
    std::string_view ignored;
    return number(length_bytes, length) && bytes(length, ignored) && push(none_value);
  }
  // Pops module and name as two strings. The known names are in one table, in the form used by older protocols.
  bool name_of_texts() {
    if (!has(2)) return false;
    const pickle_value called = pop(), module = pop();
    if (!is(called, pickle_kind::text) || !is(module, pickle_kind::text)) return fail("a global's name is not a string");
    const std::string wanted = fmt::format("{}\n{}", node(module).text, node(called).text);
    const auto found = known_name(wanted);
    if (!found)
      return fail(fmt::format("unsupported global {}: only those used for tensors are allowed; nothing was executed", dotted(wanted)));
    return push_new({.kind = pickle_kind::name, .text = *found});
  }

  // Only a hint for buffering.
  bool frame() {
    std::uint64_t length = 0;
    return number(8, length);
  }

  bool tuple_of(std::size_t count) {
    if (!has(count)) return false;
    const std::vector<pickle_value> values(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return push_tuple(values);
  }
  bool tuple_to_mark() {
    std::vector<pickle_value> values;
    return pop_to_mark(values) && push_tuple(values);
  }
  bool push_tuple(const std::vector<pickle_value>& values) {
    if (values.empty()) return push(empty_tuple);
    if (!push_new({.kind = pickle_kind::tuple})) return false;
    items_for(stack_.back()) = values;
    return true;
  }

  bool append(std::size_t count) {
    if (!has(count + 1)) return false;
    const pickle_value value = pop(), to = stack_.back();
    if (!is(to, pickle_kind::list)) return fail("append to a value that is not a list");
    items_for(to).push_back(value);
    return true;
  }
  bool set_item() {
    if (!has(3)) return false;
    const pickle_value value = pop(), key = pop(), to = stack_.back();
    if (!is(to, pickle_kind::dict)) return fail("set an item of a value that is not a dict");
    auto& items = items_for(to);
    items.push_back(key);
    items.push_back(value);
    return true;
  }
  bool append_to_mark(pickle_kind kind) {
    std::vector<pickle_value> values;
    if (!pop_to_mark(values) || !has(1)) return false;
    if (!is(stack_.back(), kind)) return fail("add items to a value of the wrong kind");
    if (kind == pickle_kind::dict && values.size() % 2 != 0) return fail("a key has no value");
    if (values.empty()) return true;
    auto& items = items_for(stack_.back());
    items.insert(items.end(), values.begin(), values.end());
    return true;
  }

  bool put(std::size_t count) {
    std::uint64_t place = 0;
    return number(count, place) && remember(static_cast<std::uint32_t>(place));
  }
  bool remember(std::uint32_t place) {
    if (!has(1)) return false;
    if (memo_.size() >= most_values) return fail(fmt::format("memoizes more than {} values", most_values));
    memo_[place] = stack_.back();
    return true;
  }
  bool get(std::size_t count) {
    std::uint64_t place = 0;
    if (!number(count, place)) return false;
    const auto found = memo_.find(static_cast<std::uint32_t>(place));
    return found == memo_.end() ? fail(fmt::format("value {} is not in the memo", place)) : push(found->second);
  }

  // --- tensors

  [[nodiscard]] bool is_count(pickle_value value) { return is(value, pickle_kind::integer) && node(value).number >= 0; }
  [[nodiscard]] std::uint64_t count_of(pickle_value value) { return static_cast<std::uint64_t>(node(value).number); }

  // ("storage", class, key, location, number of elements)
  bool persistent() {
    if (!has(1)) return false;
    const pickle_value id = pop();
    if (!is(id, pickle_kind::tuple)) return fail("invalid reference to a storage");
    const auto& parts = made_.items_of(id);
    const bool fits = parts.size() == 5 && is(parts[0], pickle_kind::text) && node(parts[0]).text == "storage" &&
                      is(parts[1], pickle_kind::name) && is_type(node(parts[1]).text) && is(parts[2], pickle_kind::text) &&
                      is_count(parts[4]);
    if (!fits) return fail("invalid reference to a storage");
    made_.storages.push_back({node(parts[1]).text, node(parts[2]).text, count_of(parts[4])});
    return push_new({.kind = pickle_kind::storage, .extra = static_cast<std::uint32_t>(made_.storages.size() - 1)});
  }

  bool reduce() {
    if (!has(2)) return false;
    const pickle_value arguments = pop(), callee = pop();
    if (!is(callee, pickle_kind::name) || !is(arguments, pickle_kind::tuple)) return fail("call of a value that is not callable");
    const std::string_view name = node(callee).text;
    const auto& values = made_.items_of(arguments);
    if (name == ordered_dict && values.empty()) return push_new({.kind = pickle_kind::dict});
    if (name == torch_size && values.size() == 1 && is(values[0], pickle_kind::tuple)) return push(values[0]);
    if (name == parameter && values.size() == 3 && is(values[0], pickle_kind::tensor)) return push(values[0]);
    if (name == numpy_dtype) return push_new({.kind = pickle_kind::name, .text = made_dtype});
    if (name == numpy_scalar || name == old_numpy_scalar) return push_new({.kind = pickle_kind::name, .text = made_scalar});
    if (name == encode) return push(none_value);
    if (name == tensor_v2 || name == tensor_v3) return tensor(values, name == tensor_v3);
    return fail(fmt::format("unexpected arguments for {}, not written by torch.save", dotted(name)));
  }

  // (storage, offset, shape, strides, requires_grad, hooks[, dtype][, metadata])
  bool tensor(const std::vector<pickle_value>& values, bool has_type) {
    const std::size_t least = has_type ? 7 : 6;
    const bool fits = (values.size() == least || values.size() == least + 1) && is(values[0], pickle_kind::storage) &&
                      is_count(values[1]) && (!has_type || is(values[6], pickle_kind::name));
    if (!fits) return fail("unexpected arguments for a tensor, not written by torch.save");
    if (made_.tensors.size() >= most_tensors) return fail(fmt::format("contains more than {} tensors", most_tensors));
    pickled_tensor made;
    made.storage = node(values[0]).extra;
    made.offset = count_of(values[1]);
    if (!counts(values[2], made.shape) || !counts(values[3], made.strides)) return false;
    if (made.shape.size() != made.strides.size()) return fail("a tensor's numbers of strides and dimensions differ");
    if (has_type) made.type = node(values[6]).text;
    // {"conj": True}
    made.is_deferred = values.size() > least && !is(values[least], pickle_kind::none) &&
                       !(is(values[least], pickle_kind::dict) && made_.items_of(values[least]).empty());
    made_.tensors.push_back(std::move(made));
    return push_new({.kind = pickle_kind::tensor, .extra = static_cast<std::uint32_t>(made_.tensors.size() - 1)});
  }
  bool counts(pickle_value of, std::vector<std::uint64_t>& to) {
    if (!is(of, pickle_kind::tuple)) return fail("a tensor's shape or strides are not a tuple");
    const auto& values = made_.items_of(of);
    if (values.size() > most_dimensions) return fail(fmt::format("a tensor has {} dimensions", values.size()));
    for (const pickle_value each : values) {
      if (!is_count(each)) return fail("a tensor's shape or strides are not numbers");
      to.push_back(count_of(each));
    }
    return true;
  }

  // Attributes of an OrderedDict, as state_dict() has them.
  bool build() {
    if (!has(2)) return false;
    const pickle_value state = pop(), of = stack_.back();
    if (is(of, pickle_kind::name) && node(of).text == made_dtype) return true;
    if (!is(of, pickle_kind::dict) || !is(state, pickle_kind::dict)) return fail("set attributes of a value that is not a dict");
    made_.states[of] = state;
    return true;
  }

  bool fail(std::string_view what) {
    problem_ = {errc::invalid_argument, fmt::format("at byte {} of the pickle: {}", begin_, what)};
    return false;
  }

  std::string_view pickle_;
  std::size_t at_ = 0, begin_ = 0;  // begin_: start of the current opcode
  bool stopped_ = false;
  pickle_content made_;
  std::vector<pickle_value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, pickle_value> memo_;
  status problem_;
};

}  // namespace

const std::vector<pickle_value>& pickle_content::items_of(pickle_value value) const {
  static const std::vector<pickle_value> none;
  return nodes[value].extra == 0 ? none : items[nodes[value].extra - 1];
}

result<pickle_content> read_pickle(std::string_view pickle) {
  pickle_reader reader(pickle);
  if (!reader.read_all()) return reader.problem();
  return reader.take();
}

}  // namespace penstock::tensors
