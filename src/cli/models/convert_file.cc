#include "cli/models/convert_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "bench/meter.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/progress.hpp"

namespace penstock::cli {
namespace {

constexpr std::uint64_t buffer_bytes = std::uint64_t{16} << 20;

// Extensions of formats that Penstock does not recognize by their content.
constexpr std::array<std::string_view, 10> unknown_endings{".ggml", ".onnx", ".pb",  ".tflite",  ".msgpack",
                                                           ".zarr", ".txt",  ".csv", ".parquet", ".arrow"};

std::string tensor_words(std::string_view name) { return fmt::format("tensor \"{}\"", name); }

// Writes data piece by piece while the next piece is prepared in another buffer.
class piece_writer {
 public:
  explicit piece_writer(const file& to) : to_(to) {
    for (auto& each : buffers_) each = std::make_unique_for_overwrite<std::byte[]>(buffer_bytes);
  }
  piece_writer(const piece_writer&) = delete;
  piece_writer& operator=(const piece_writer&) = delete;
  ~piece_writer() { (void)finish(); }

  // Returns the buffer for the next piece.
  [[nodiscard]] std::byte* buffer() const { return buffers_[turn_].get(); }
  status write(std::uint64_t bytes, std::uint64_t offset) {
    if (status error = finish(); !error.ok()) return error;
    if (interrupted()) return {errc::cancelled, "interrupted"};
    pending_ = to_.write_async(buffer(), bytes, static_cast<std::int64_t>(offset));
    turn_ = 1 - turn_;
    return {};
  }
  status finish() {
    if (!pending_) return {};
    const io_result done = pending_->wait();
    pending_.reset();
    return done.error;
  }

 private:
  const file& to_;
  std::array<std::unique_ptr<std::byte[]>, 2> buffers_;
  std::size_t turn_ = 0;
  std::optional<operation> pending_;
};

// Iterates over the elements of a view in the order of its shape; the memory starts with the first element.
class element_walk {
 public:
  element_walk(const checkpoint_tensor& of, const std::byte* memory)
      : shape_(of.shape), strides_(of.strides), unit_(bits_of(of.type) / 8), memory_(memory), index_(of.shape.size()), left_(of.bytes) {}

  // Copies at most `bytes` of the remaining elements; bytes must be a multiple of the element size.
  std::uint64_t take(std::byte* to, std::uint64_t bytes) {
    const std::uint64_t count = std::min(bytes, left_);
    for (std::uint64_t done = 0; done < count; done += unit_) {
      std::memcpy(to + done, memory_ + place_ * unit_, unit_);
      advance();
    }
    left_ -= count;
    return count;
  }
  [[nodiscard]] std::uint64_t left() const { return left_; }

 private:
  void advance() {
    for (std::size_t i = shape_.size(); i-- > 0;) {
      place_ += strides_[i];
      if (++index_[i] < shape_[i]) return;
      place_ -= strides_[i] * shape_[i];
      index_[i] = 0;
    }
  }
  std::span<const std::uint64_t> shape_, strides_;
  std::uint64_t unit_;
  const std::byte* memory_;
  std::vector<std::uint64_t> index_;
  std::uint64_t place_ = 0;  // counted in elements
  std::uint64_t left_;
};

// Copies the bytes of tensors from one file to the other.
class tensor_carrier {
 public:
  tensor_carrier(const file& from, const file& to, const std::string& name, std::uint64_t bytes)
      : from_(from), writer_(to), bar_("converting", name, bytes) {}

  // Copies bytes unchanged. checksum: updated with their CRC-32 unless null.
  status copy(std::uint64_t offset, std::uint64_t bytes, std::uint64_t to, std::uint32_t* checksum = nullptr) {
    for (std::uint64_t done = 0; done < bytes;) {
      const std::uint64_t count = std::min(buffer_bytes, bytes - done);
      if (status error = read(writer_.buffer(), count, offset + done); !error.ok()) return error;
      if (checksum != nullptr) *checksum = zip_crc32({writer_.buffer(), count}, *checksum);
      if (status error = write(count, to + done); !error.ok()) return error;
      done += count;
    }
    return {};
  }
  // Writes the elements in the order of the shape. Keeps the part of the storage that the view covers in memory.
  status gather(const checkpoint_tensor& view, std::uint64_t to) {
    const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[view.extent]);
    if (memory == nullptr) return {errc::out_of_memory, fmt::format("not enough memory for the {} bytes that it spans", view.extent)};
    if (status error = read(memory.get(), view.extent, view.offset); !error.ok()) return error;
    for (element_walk walk(view, memory.get()); walk.left() > 0;) {
      const std::uint64_t count = walk.take(writer_.buffer(), buffer_bytes);
      if (status error = write(count, to); !error.ok()) return error;
      to += count;
    }
    return {};
  }
  status finish() { return writer_.finish(); }

 private:
  [[nodiscard]] status read(std::byte* to, std::uint64_t bytes, std::uint64_t offset) const {
    const io_result done = from_.read(to, bytes, static_cast<std::int64_t>(offset));
    if (!done.ok()) return done.error;
    if (done.bytes_done < bytes) return {errc::io, fmt::format("{} was truncated while being read", from_.path())};
    return {};
  }
  status write(std::uint64_t bytes, std::uint64_t offset) {
    done_ += bytes;
    bar_.update(done_);
    return writer_.write(bytes, offset);
  }

  const file& from_;
  piece_writer writer_;
  progress_bar bar_;
  std::uint64_t done_ = 0;
};

status write_text(const file& to, std::string_view text, std::uint64_t offset) {
  return to.write(text.data(), text.size(), static_cast<std::int64_t>(offset)).error;
}

class converter {
 public:
  converter(const engine& owner, const std::string& from, const std::string& to, const selection_options& wanted)
      : owner_(owner), from_name_(from), to_name_(to), wanted_(wanted) {}

  result<converted_file> convert() {
    const bench::stopwatch watch;
    if (status error = run(); !error.ok()) return error;
    made_.seconds = watch.seconds();
    return std::move(made_);
  }

 private:
  status run() {
    auto from = owner_.open(from_name_);
    if (!from) return from.error();
    from_ = *std::move(from);
    const bool is_checkpoint = is_zip(from_);
    const auto kind = find_file_kind(from_);
    if (!kind) return kind.error();
    if (!is_checkpoint && *kind != nullptr && (*kind)->word == "checkpoint") {
      return {errc::unsupported,
              fmt::format("{}: a checkpoint in the format of PyTorch 1.5 and older, which is not a zip archive: load it with "
                          "PyTorch and save it again",
                          from_name_)};
    }
    if (status error = check_names(is_checkpoint); !error.ok()) return error;
    return is_checkpoint ? to_safetensors() : to_checkpoint();
  }

  [[nodiscard]] status check_names(bool is_checkpoint) const {
    namespace fs = std::filesystem;
    const auto wrong = [](std::string message) { return status(errc::invalid_argument, std::move(message)); };
    std::error_code ignored;
    if (fs::equivalent(from_name_, to_name_, ignored)) return wrong(fmt::format("{} and {} are the same file", from_name_, to_name_));
    std::string ending = fs::path(to_name_).extension().string();
    std::ranges::transform(ending, ending.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    const file_kind* const meant = kind_by_ending(ending);
    const std::string_view word = meant == nullptr ? "" : meant->word;
    const bool means_safetensors = word == "safetensors", means_checkpoint = word == "checkpoint" || word == "pickle";
    const bool means_other =
        meant != nullptr ? !means_safetensors && !means_checkpoint : std::ranges::find(unknown_endings, ending) != unknown_endings.end();
    if (means_other)
      return wrong(fmt::format("{} would be a {} file, but its extension is for another format", to_name_,
                               is_checkpoint ? "safetensors" : "checkpoint"));
    if (is_checkpoint && means_checkpoint)
      return wrong(fmt::format("{} is a checkpoint and would become a safetensors file, but the extension of {} is for another format",
                               from_name_, to_name_));
    if (!is_checkpoint && means_safetensors)
      return wrong(
          fmt::format("{} is not a checkpoint and would become one, but the extension of {} is for another format", from_name_, to_name_));
    const bool is_selecting = !wanted_.key.empty() || wanted_.flatten || wanted_.tensors_only;
    if (!is_checkpoint && is_selecting)
      return wrong("--key, --flatten and --tensors-only work only with checkpoints").with_context(from_name_);
    return {};
  }

  // --- to safetensors

  status to_safetensors() {
    const auto checkpoint = read_torch_checkpoint(from_);
    if (!checkpoint) return checkpoint.error();
    auto selection = select_tensors(*checkpoint, wanted_);
    if (!selection) return selection.error().with_context(from_name_);
    std::vector<tensor_facts> tensors;
    for (const selected_tensor& each : selection->tensors) tensors.push_back({each.name, each.tensor->type, each.tensor->shape});
    // PyTorch's readers of safetensors files need this entry.
    const auto metadata = checkpoint->metadata.empty() ? tensor_metadata{{"format", "pt"}} : checkpoint->metadata;
    const auto beginning = make_safetensors(tensors, metadata);
    if (!beginning) return beginning.error().with_context(from_name_);
    const tensor_header places(std::move(tensors), metadata, beginning->size());
    tell("safetensors", places.tensors());
    made_.left_out = std::move(selection->left_out);
    made_.strided = std::move(selection->strided);
    made_.shared = std::move(selection->shared);
    return write_file([&](const file& to) { return write_safetensors(to, *beginning, selection->tensors, places); });
  }
  status write_safetensors(const file& to, const std::string& beginning, std::vector<selected_tensor> tensors,
                           const tensor_header& places) {
    if (status error = write_text(to, beginning, 0); !error.ok()) return error;
    // Copies in the order of the source file.
    std::ranges::stable_sort(tensors, {}, [](const selected_tensor& each) { return each.tensor->offset; });
    tensor_carrier carrier(from_, to, from_name_, made_.bytes);
    for (const selected_tensor& each : tensors) {
      const std::uint64_t place = places.find(each.name)->offset;
      const status error =
          each.tensor->contiguous ? carrier.copy(each.tensor->offset, each.tensor->bytes, place) : carrier.gather(*each.tensor, place);
      if (!error.ok()) return error.with_context(tensor_words(each.name));
    }
    return carrier.finish();
  }

  // --- to a checkpoint

  status to_checkpoint() {
    const auto header = read_safetensors(from_);
    if (!header) return header.error();
    auto tensors = header->tensors();
    const auto image = make_torch_checkpoint(tensors, header->metadata().value_or(tensor_metadata()));
    if (!image) return image.error().with_context(from_name_);
    tell("checkpoint", tensors);
    return write_file([&](const file& to) { return write_checkpoint(to, *header, tensors, *image); });
  }
  status write_checkpoint(const file& to, const tensor_header& header, const std::vector<tensor_facts>& places,
                          const torch_checkpoint_image& image) {
    std::vector<std::uint32_t> checksums(places.size());
    tensor_carrier carrier(from_, to, from_name_, made_.bytes);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const status error = carrier.copy(header.tensors()[i].offset, places[i].bytes, places[i].offset, &checksums[i]);
      if (!error.ok()) return error.with_context(tensor_words(places[i].name));
    }
    if (status error = carrier.finish(); !error.ok()) return error;
    const auto parts = image.parts(checksums);
    if (!parts) return parts.error();
    for (const placed_bytes& each : *parts) {
      if (status error = write_text(to, each.bytes, each.offset); !error.ok()) return error;
    }
    return {};
  }

  // --- for both directions

  void tell(const char* kind, const std::vector<tensor_facts>& tensors) {
    made_.kind = kind;
    made_.tensors = tensors.size();
    for (const tensor_facts& each : tensors) made_.bytes += each.bytes;
  }
  template <class Write>
  status write_file(const Write& write) {
    auto pending = pending_file::create(owner_, to_name_);
    if (!pending) return pending.error();
    auto to = pending->open(owner_, {.name = to_name_});
    if (!to) return to.error().with_context(to_name_);
    if (status error = write(*to); !error.ok()) return error.with_context(to_name_);
    if (status error = to->close(); !error.ok()) return error.with_context(to_name_);
    if (interrupted()) return {errc::cancelled, "interrupted"};
    return pending->publish();
  }

  const engine& owner_;
  const std::string &from_name_, &to_name_;
  const selection_options& wanted_;
  file from_;
  converted_file made_;
};

}  // namespace

result<converted_file> convert_file(const engine& owner, const std::string& from, const std::string& to, const selection_options& wanted) {
  return converter(owner, from, to, wanted).convert();
}

}  // namespace penstock::cli
