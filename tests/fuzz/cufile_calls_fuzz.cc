// Sequences of cuFile calls with hostile arguments. The input is a program: one byte selects the call, the next ones its arguments. No
// input may cause a crash, a hang, or a write outside the given memory.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "cufile/cufile.h"

namespace {

constexpr std::size_t memory_bytes = std::size_t{256} << 10;
constexpr std::size_t guard_bytes = 4096;
constexpr std::byte guard_value{0xa5};

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "cufile_calls_fuzz: %s\n", what);
  std::abort();
}

// Reads the program; past its end everything is zero.
class input {
 public:
  input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  [[nodiscard]] bool done() const { return at_ >= size_; }
  std::uint8_t byte() { return done() ? 0 : data_[at_++]; }
  std::size_t below(std::size_t bound) { return byte() % bound; }
  // Mostly small, sometimes on a border.
  std::int64_t number() {
    static constexpr std::array<std::int64_t, 12> borders = {0,
                                                             -1,
                                                             1,
                                                             4095,
                                                             4096,
                                                             4097,
                                                             1 << 16,
                                                             memory_bytes,
                                                             memory_bytes + 1,
                                                             std::int64_t{1} << 40,
                                                             std::numeric_limits<std::int64_t>::max(),
                                                             std::numeric_limits<std::int64_t>::min()};
    const auto kind = byte();
    if (kind % 3 == 0) return borders[kind / 3 % borders.size()];
    return byte() * 256 + byte();
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

// A file, memory between guards, and what has been made so far.
class world {
 public:
  world() : memory_(memory_bytes + 2 * guard_bytes, guard_value) {
    char name[] = "/tmp/penstock-fuzz-XXXXXX";
    file_ = mkstemp(name);
    require(file_ >= 0, "no temporary file");
    require(unlink(name) == 0 && ftruncate(file_, 100'003) == 0, "the temporary file cannot be prepared");
  }
  world(const world&) = delete;
  world& operator=(const world&) = delete;
  ~world() {
    for (auto* each : batches_) cuFileBatchIODestroy(each);
    while (cuFileUseCount() > 0) (void)cuFileDriverClose();
    // A stray transfer of a stream ends before its file is closed.
    for (const int each : copies_) close(each);
    close(file_);
    const auto untouched = [&](std::size_t from) {
      return std::all_of(&memory_[from], &memory_[from] + guard_bytes, [](std::byte each) { return each == guard_value; });
    };
    require(untouched(0) && untouched(guard_bytes + memory_bytes), "memory outside of the buffer was written");
  }

  void step(input& in) {
    switch (in.below(20)) {
      case 0:
        (void)cuFileDriverOpen();
        break;
      case 1:
        (void)cuFileDriverClose();
        break;
      case 2:
      case 3:
        register_file(in);
        break;
      case 4:
        cuFileHandleDeregister(file(in));
        break;
      case 5:
        (void)cuFileBufRegister(base(in), static_cast<std::size_t>(in.number()), in.byte());
        break;
      case 6:
        (void)cuFileBufDeregister(base(in));
        break;
      case 7:
      case 8:
        transfer(in, false);
        break;
      case 9:
        transfer(in, true);
        break;
      case 10:
        vector(in);
        break;
      case 11:
        set_up(in);
        break;
      case 12:
      case 13:
        submit(in);
        break;
      case 14:
        collect(in);
        break;
      case 15:
        (void)cuFileBatchIOCancel(batch(in));
        break;
      case 16:
        cuFileBatchIODestroy(batch(in));
        break;
      case 17:
        parameters(in);
        break;
      case 18:
        statistics(in);
        break;
      default:
        streams(in);
        break;
    }
  }

 private:
  void* base(input& in) {
    const auto kind = in.below(8);
    if (kind == 0) return nullptr;
    if (kind == 1) return reinterpret_cast<void*>(std::uintptr_t{16});  // nothing is there
    return &memory_[guard_bytes + (kind == 2 ? in.below(200) : 0)];
  }
  // What may be moved from base without leaving memory; anything where no byte can be touched.
  static std::size_t fitting(std::int64_t wanted, std::size_t room) {
    return wanted < 0 ? 0 : std::min<std::size_t>(static_cast<std::size_t>(wanted), room);
  }
  CUfileHandle_t file(input& in) {
    const auto kind = in.below(8);
    if (kind == 0) return nullptr;
    if (kind == 1) return reinterpret_cast<CUfileHandle_t>(static_cast<std::uintptr_t>(in.number()));
    return files_.empty() ? nullptr : files_[in.below(files_.size())];
  }
  CUfileBatchHandle_t batch(input& in) {
    if (in.below(8) == 0) return reinterpret_cast<CUfileBatchHandle_t>(static_cast<std::uintptr_t>(in.number()));
    return batches_.empty() ? nullptr : batches_[in.below(batches_.size())];
  }

  void register_file(input& in) {
    if (files_.size() >= 32) return;
    CUfileDescr_t what{};
    what.type = in.below(6) == 0 ? CU_FILE_HANDLE_TYPE_USERSPACE_FS : CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    // Descriptors that are not open; an open one could be the engine's own.
    const bool invented = in.below(6) == 0;
    what.handle.fd = invented ? (in.byte() % 2 == 0 ? -1 : 1 << 20) : dup(file_);
    if (!invented) copies_.push_back(what.handle.fd);
    CUfileHandle_t made = nullptr;
    if (cuFileHandleRegister(in.below(10) == 0 ? nullptr : &made, &what).err == CU_FILE_SUCCESS && made != nullptr) files_.push_back(made);
  }
  void transfer(input& in, bool is_write) {
    auto* const handle = file(in);
    const auto offset = in.number();
    const auto in_memory = in.number();
    const auto room =
        in_memory < 0 || in_memory > static_cast<std::int64_t>(memory_bytes) ? 0 : memory_bytes - static_cast<std::size_t>(in_memory);
    const auto size = fitting(in.number(), room);
    const auto moved =
        is_write ? cuFileWrite(handle, start(), size, offset % (1 << 20), in_memory) : cuFileRead(handle, start(), size, offset, in_memory);
    require(moved <= static_cast<ssize_t>(size), "more was moved than was asked for");
  }
  void vector(input& in) {
    std::vector<CUfileIOVec_t> pieces(in.below(6));
    for (auto& each : pieces) each = {start(), fitting(in.number(), memory_bytes)};
    (void)cuFileReadv(file(in), pieces.data(), pieces.size(), in.number(), in.below(4) == 0 ? 1U : 0U);
  }
  void set_up(input& in) {
    if (batches_.size() >= 8) return;
    CUfileBatchHandle_t made = nullptr;
    if (cuFileBatchIOSetUp(&made, in.below(4) == 0 ? static_cast<unsigned>(in.number()) : in.byte()).err == CU_FILE_SUCCESS)
      batches_.push_back(made);
  }
  void submit(input& in) {
    std::vector<CUfileIOParams_t> entries(in.below(9));
    for (auto& each : entries) {
      each.mode = CUFILE_BATCH;
      each.fh = file(in);
      each.opcode = static_cast<CUfileOpcode_t>(in.below(2));
      each.u.batch = {start(), in.number(), 0, fitting(in.number(), memory_bytes)};
      if (each.opcode == CUFILE_WRITE) each.u.batch.file_offset %= 1 << 20;
    }
    (void)cuFileBatchIOSubmit(batch(in), static_cast<unsigned>(entries.size()), entries.data(), in.below(8) == 0 ? 1U : 0U);
  }
  void collect(input& in) {
    std::array<CUfileIOEvents_t, 16> events{};
    unsigned count = static_cast<unsigned>(in.below(17));
    const auto least = static_cast<unsigned>(in.below(18));
    timespec limit{0, in.below(2) == 0 ? 0 : 100'000};
    const auto told = cuFileBatchIOGetStatus(batch(in), least, &count, events.data(), in.below(2) == 0 ? nullptr : &limit);
    require(told.err != CU_FILE_SUCCESS || count <= events.size(), "more events than there was room for");
  }
  // Enumerators of the interface only: a value outside of an enumeration cannot come from a program in C++.
  static void parameters(input& in) {
    const auto which = static_cast<CUFileSizeTConfigParameter_t>(in.below(12));
    const auto value = in.number();
    std::size_t least = 0;
    std::size_t most = 0;
    (void)cuFileSetParameterSizeT(which, static_cast<std::size_t>(value));
    (void)cuFileGetParameterSizeT(which, &least);
    (void)cuFileGetParameterMinMaxValue(which, &least, &most);
    (void)cuFileSetParameterBool(static_cast<CUFileBoolConfigParameter_t>(in.below(12)), in.below(2) != 0);
    std::array<char, 8> text{};
    (void)cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, text.data(), static_cast<int>(in.below(9)));
  }
  static void statistics(input& in) {
    (void)cuFileSetStatsLevel(static_cast<int>(in.number()));
    (void)(in.below(2) == 0 ? cuFileStatsStart() : cuFileStatsStop());
    CUfileStatsLevel3_t all{};
    (void)cuFileGetStatsL3(&all);
    (void)cuFileGetStatsL1(&all.detailed.basic);
    CUfileDrvProps_t properties{};
    (void)cuFileDriverGetProperties(&properties);
  }
  void streams(input& in) {
    auto* const stream = reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(in.below(3)) * 16);
    (void)(in.below(2) == 0 ? cuFileStreamRegister(stream, in.byte()) : cuFileStreamDeregister(stream));
    // Host memory takes no part in the order of a stream: refused, whatever the rest.
    static std::size_t size = 4096;
    static off_t zero = 0;
    static ssize_t bytes = 0;
    (void)cuFileReadAsync(file(in), base(in), in.below(4) == 0 ? nullptr : &size, &zero, &zero, &bytes, stream);
  }

  [[nodiscard]] std::byte* start() { return &memory_[guard_bytes]; }

  int file_ = -1;
  std::vector<int> copies_;
  std::vector<std::byte> memory_;
  std::vector<CUfileHandle_t> files_;
  std::vector<CUfileBatchHandle_t> batches_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr int most_steps = 64;
  world made;
  input in(data, size);
  for (int i = 0; i < most_steps && !in.done(); ++i) made.step(in);
  return 0;
}
