// penstock_cufile_bench: measures how fast a libcufile.so.0 reads files, with calls that both NVIDIA's library and ours provide, or the
// same rows through Penstock's C++ interface. Each process measures one library, so that none warms up another's GPU, pools or threads.
// Prints a line for each row, and with --json also a line of JSON. Each row's bytes are compared with the file before its figures are
// printed.
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cufile/cufile.h"
#include "penstock/penstock.hpp"

namespace {

using clock = std::chrono::steady_clock;

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;
constexpr std::uint64_t page = 4 * kib;

[[noreturn]] void fail(std::string_view what) { throw std::runtime_error(std::string(what)); }
[[noreturn]] void fail_os(std::string_view what) { fail(fmt::format("{}: {}", what, std::strerror(errno))); }

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// --- memory

// GPU 0 through libcuda.so.1, opened at run time.
class gpu {
 public:
  gpu() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) fail("no libcuda.so.1; --host measures with host memory");
    int device = 0;
    check("cuInit", function<int(unsigned)>("cuInit")(0));
    check("cuDeviceGet", function<int(int*, int)>("cuDeviceGet")(&device, 0));
    check("cuDevicePrimaryCtxRetain", function<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context_, device));
    use_in_this_thread();
  }
  void use_in_this_thread() const { check("cuCtxSetCurrent", function<int(void*)>("cuCtxSetCurrent")(context_)); }
  [[nodiscard]] std::byte* allocate(std::uint64_t bytes) const {
    std::uint64_t memory = 0;
    check("cuMemAlloc", function<int(std::uint64_t*, std::size_t)>("cuMemAlloc_v2")(&memory, bytes));
    return reinterpret_cast<std::byte*>(memory);  // NOLINT: an address of the GPU
  }
  void wipe(std::byte* memory, std::uint64_t bytes) const {
    check("cuMemsetD8", function<int(std::uint64_t, unsigned char, std::size_t)>("cuMemsetD8_v2")(number(memory), 0, bytes));
    check("cuCtxSynchronize", function<int()>("cuCtxSynchronize")());
  }
  void fetch(void* target, const std::byte* memory, std::uint64_t bytes) const {
    check("cuMemcpyDtoH", function<int(void*, std::uint64_t, std::size_t)>("cuMemcpyDtoH_v2")(target, number(memory), bytes));
  }

 private:
  static std::uint64_t number(const std::byte* memory) { return reinterpret_cast<std::uint64_t>(memory); }
  template <class Signature>
  [[nodiscard]] Signature* function(const char* name) const {
    void* found = dlsym(library_, name);
    if (found == nullptr) fail(fmt::format("libcuda.so.1 has no {}", name));
    return reinterpret_cast<Signature*>(found);
  }
  static void check(const char* what, int error) {
    if (error != 0) fail(fmt::format("{}: CUDA error {}", what, error));
  }
  void* library_ = nullptr;
  void* context_ = nullptr;
};

// The memory that the rows read into; kept until the process exits.
class memory {
 public:
  memory(bool host, std::uint64_t bytes) : size_(bytes) {
    if (!host) {
      gpu_.emplace();
      base_ = gpu_->allocate(bytes);
      return;
    }
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (mapped == MAP_FAILED) fail_os(fmt::format("{} bytes of memory", bytes));
    base_ = static_cast<std::byte*>(mapped);
  }
  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return base_ + offset; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] const char* name() const { return gpu_ ? "cuda:0" : "host"; }
  void use_in_this_thread() const {
    if (gpu_) gpu_->use_in_this_thread();
  }
  void wipe() const {
    if (gpu_) {
      gpu_->wipe(base_, size_);
    } else {
      std::memset(base_, 0, size_);
    }
  }
  void fetch(void* target, std::uint64_t offset, std::uint64_t bytes) const {
    if (gpu_) {
      gpu_->fetch(target, base_ + offset, bytes);
    } else {
      std::memcpy(target, base_ + offset, bytes);
    }
  }

 private:
  std::optional<gpu> gpu_;
  std::byte* base_ = nullptr;
  std::uint64_t size_;
};

// --- the file

struct descriptors {
  int buffered = -1;
  int direct = -1;
};

void write_random(int fd, std::uint64_t bytes) {
  std::vector<std::uint64_t> block(mib / sizeof(std::uint64_t));
  std::mt19937_64 random(bytes);
  for (std::uint64_t done = 0; done < bytes; done += mib) {
    for (auto& word : block) word = random();
    if (pwrite(fd, block.data(), mib, static_cast<off_t>(done)) != static_cast<ssize_t>(mib)) fail_os("writing the file");
  }
  if (fsync(fd) != 0) fail_os("fsync");
}

// Opens the file. Creates it first if it does not exist or has a different size.
descriptors open_file(const std::string& name, std::uint64_t bytes) {
  struct stat about {};
  if (stat(name.c_str(), &about) != 0 || static_cast<std::uint64_t>(about.st_size) != bytes) {
    const int fd = open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) fail_os(name);
    write_random(fd, bytes);
    close(fd);
  }
  descriptors opened{open(name.c_str(), O_RDONLY | O_CLOEXEC), open(name.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)};
  if (opened.buffered < 0) fail_os(name);
  return opened;
}

// Returns how many of the file's first `bytes` bytes are in the page cache.
std::uint64_t cached_bytes(int fd, std::uint64_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) fail_os("mmap");
  std::vector<unsigned char> pages(bytes / page);
  const int error = mincore(mapped, bytes, pages.data());
  munmap(mapped, bytes);
  if (error != 0) fail_os("mincore");
  return static_cast<std::uint64_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char each) { return (each & 1) != 0; })) * page;
}

void make_hot(int fd, std::uint64_t bytes) {
  std::vector<std::byte> block(16 * mib);
  for (std::uint64_t done = 0; done < bytes; done += block.size()) {
    if (pread(fd, block.data(), block.size(), static_cast<off_t>(done)) < 0) fail_os("pread");
  }
  if (const auto cached = cached_bytes(fd, bytes); cached < bytes - bytes / 100) {
    fail(fmt::format("only {} of {} MiB stay in the page cache", cached / mib, bytes / mib));
  }
}

void make_cold(int fd, std::uint64_t bytes) {
  if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0) fail_os("posix_fadvise");
  if (const auto cached = cached_bytes(fd, bytes); cached > bytes / 100) {
    fail(fmt::format("{} of {} MiB stay in the page cache", cached / mib, bytes / mib));
  }
}

// --- what is measured

struct piece {
  std::uint64_t memory_offset;
  std::uint64_t file_offset;
  std::uint64_t length;
};

enum class kind { buffered, direct };

// A library under test: reads pieces of the file into the memory. Several threads may call read() concurrently.
class subject {
 public:
  virtual ~subject() = default;
  // Returns the microseconds from the first call until the library reports that it is ready.
  virtual double open() = 0;
  virtual void use(const descriptors& files, const memory& target, bool register_memory) = 0;
  virtual void read(kind file, const piece& what) = 0;
  virtual void batch(std::span<const piece> pieces) = 0;
  [[nodiscard]] virtual nlohmann::json name() const = 0;
};

void expect_whole(const piece& what, ssize_t bytes, int error) {
  if (bytes == static_cast<ssize_t>(what.length)) return;
  fail(fmt::format("read of {} bytes at {}: {} (errno {})", what.length, what.file_offset, bytes, error));
}

class cufile_subject : public subject {
 public:
  explicit cufile_subject(const std::string& path) : path_(path) {
    const auto began = clock::now();
    library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) fail(dlerror());
    load_us_ = std::chrono::duration<double, std::micro>(clock::now() - began).count();
    read_ = function<decltype(cuFileRead)>("cuFileRead");
    submit_ = function<decltype(cuFileBatchIOSubmit)>("cuFileBatchIOSubmit");
    status_ = function<decltype(cuFileBatchIOGetStatus)>("cuFileBatchIOGetStatus");
    if (function<decltype(cuFileGetVersion)>("cuFileGetVersion")(&version_).err != CU_FILE_SUCCESS) fail("cuFileGetVersion");
  }
  double open() override {
    auto* const open_driver = function<decltype(cuFileDriverOpen)>("cuFileDriverOpen");
    const auto began = clock::now();
    check("cuFileDriverOpen", open_driver());
    return std::chrono::duration<double, std::micro>(clock::now() - began).count();
  }
  void use(const descriptors& files, const memory& target, bool register_memory) override {
    target_ = &target;
    buffered_ = registered(files.buffered);
    if (files.direct >= 0) direct_ = registered(files.direct);
    if (register_memory) {
      check("cuFileBufRegister", function<decltype(cuFileBufRegister)>("cuFileBufRegister")(target.at(0), target.size(), 0));
    }
  }
  void read(kind file, const piece& what) override {
    errno = 0;
    const auto handle = file == kind::direct ? direct_ : buffered_;
    expect_whole(what,
                 read_(handle, target_->at(0), what.length, static_cast<off_t>(what.file_offset), static_cast<off_t>(what.memory_offset)),
                 errno);
  }
  void batch(std::span<const piece> pieces) override {
    const auto count = static_cast<unsigned>(pieces.size());
    if (batch_ == nullptr) {
      check("cuFileBatchIOSetUp", function<decltype(cuFileBatchIOSetUp)>("cuFileBatchIOSetUp")(&batch_, count));
      operations_.resize(count);
      events_.resize(count);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      auto& entry = operations_[i];
      entry = {};
      entry.mode = CUFILE_BATCH;
      entry.fh = buffered_;
      entry.opcode = CUFILE_READ;
      entry.u.batch = {target_->at(0), static_cast<off_t>(pieces[i].file_offset), static_cast<off_t>(pieces[i].memory_offset),
                       pieces[i].length};
      entry.cookie = &entry;
    }
    check("cuFileBatchIOSubmit", submit_(batch_, count, operations_.data(), 0));
    for (unsigned done = 0; done < count;) {
      unsigned ended = count - done;
      check("cuFileBatchIOGetStatus", status_(batch_, ended, &ended, events_.data(), nullptr));
      for (unsigned i = 0; i < ended; ++i) {
        const auto& what = pieces[static_cast<std::size_t>(static_cast<CUfileIOParams_t*>(events_[i].cookie) - operations_.data())];
        expect_whole(what, events_[i].status == CUFILE_COMPLETE ? static_cast<ssize_t>(events_[i].ret) : -1, 0);
      }
      done += ended;
    }
  }
  [[nodiscard]] nlohmann::json name() const override { return {{"library", path_}, {"version", version_}, {"load_us", load_us_}}; }

 private:
  template <class Signature>
  [[nodiscard]] Signature* function(const char* name) const {
    void* found = dlsym(library_, name);
    if (found == nullptr) fail(fmt::format("{} has no {}", path_, name));
    return reinterpret_cast<Signature*>(found);
  }
  static void check(const char* what, CUfileError_t answer) {
    if (answer.err != CU_FILE_SUCCESS) {
      fail(fmt::format("{}: {} ({}, CUDA {})", what, cufileop_status_error(answer.err), static_cast<int>(answer.err),
                       static_cast<int>(answer.cu_err)));
    }
  }
  [[nodiscard]] CUfileHandle_t registered(int fd) const {
    CUfileDescr_t descriptor{};
    descriptor.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    descriptor.handle.fd = fd;
    CUfileHandle_t handle = nullptr;
    check("cuFileHandleRegister", function<decltype(cuFileHandleRegister)>("cuFileHandleRegister")(&handle, &descriptor));
    return handle;
  }

  std::string path_;
  void* library_ = nullptr;
  int version_ = 0;
  double load_us_ = 0;
  decltype(&cuFileRead) read_ = nullptr;
  decltype(&cuFileBatchIOSubmit) submit_ = nullptr;
  decltype(&cuFileBatchIOGetStatus) status_ = nullptr;
  const memory* target_ = nullptr;
  CUfileHandle_t buffered_ = nullptr;
  CUfileHandle_t direct_ = nullptr;
  CUfileBatchHandle_t batch_ = nullptr;
  std::vector<CUfileIOParams_t> operations_;
  std::vector<CUfileIOEvents_t> events_;
};

// Penstock's C++ interface.
class native_subject : public subject {
 public:
  double open() override {
    const auto began = clock::now();
    engine_ = value("engine", penstock::engine::create());
    return std::chrono::duration<double, std::micro>(clock::now() - began).count();
  }
  void use(const descriptors& files, const memory& target, bool register_memory) override {
    target_ = &target;
    buffered_ = value("adopt", engine_->adopt(files.buffered));
    if (files.direct >= 0) direct_ = value("adopt", engine_->adopt(files.direct));
    // Registers only memory that cuFileBufRegister registers; that call does nothing for host memory.
    if (register_memory && std::strcmp(target.name(), "host") != 0) {
      registration_ = value("register_memory", engine_->register_memory(target.at(0), target.size()));
    }
  }
  void read(kind file, const piece& what) override {
    const auto& from = file == kind::direct ? direct_ : buffered_;
    expect(what, from.read(target_->at(what.memory_offset), what.length, static_cast<std::int64_t>(what.file_offset)));
  }
  void batch(std::span<const piece> pieces) override {
    requests_.clear();
    for (const auto& each : pieces) {
      requests_.push_back({&buffered_, target_->at(each.memory_offset), each.length, static_cast<std::int64_t>(each.file_offset), false});
    }
    const auto ended = engine_->submit(requests_).wait();
    for (std::size_t i = 0; i < ended.size(); ++i) expect(pieces[i], ended[i]);
  }
  [[nodiscard]] nlohmann::json name() const override { return {{"library", "native"}, {"version", 0}, {"load_us", 0}}; }

 private:
  template <class Value>
  static Value value(const char* what, penstock::result<Value> made) {
    if (!made) fail(fmt::format("{}: {}", what, made.error().message()));
    return std::move(*made);
  }
  static void expect(const piece& what, const penstock::io_result& ended) {
    if (!ended.ok()) fail(ended.error.message());
    expect_whole(what, static_cast<ssize_t>(ended.bytes_done), 0);
  }

  std::optional<penstock::engine> engine_;
  penstock::file buffered_;
  penstock::file direct_;
  penstock::registration registration_;
  const memory* target_ = nullptr;
  std::vector<penstock::io_request> requests_;
};

// --- the rows

struct sample {
  double seconds;
  double cpu_seconds;
};

template <class Work>
sample timed(Work work) {
  const double cpu = cpu_seconds();
  const auto began = clock::now();
  work();
  const double seconds = std::chrono::duration<double>(clock::now() - began).count();
  return {seconds, cpu_seconds() - cpu};
}

// Compares up to 64 ranges of the bytes that a row read with the file, read by pread. Returns the number of bytes compared.
std::uint64_t verify(int fd, const memory& target, std::span<const piece> pieces) {
  constexpr std::uint64_t longest = 64 * kib;
  std::mt19937_64 random(pieces.size());
  std::vector<std::byte> found(longest);
  std::vector<std::byte> wanted(longest);
  std::uint64_t compared = 0;
  for (int i = 0; i < 64; ++i) {
    const piece& from = i == 0 ? pieces.front() : i == 1 ? pieces.back() : pieces[random() % pieces.size()];
    const auto length = std::min(longest, from.length);
    // The start of a piece, its end, and random positions.
    const auto start = i % 4 == 0 ? 0 : i % 4 == 1 ? from.length - length : random() % (from.length - length + 1);
    target.fetch(found.data(), from.memory_offset + start, length);
    const auto offset = static_cast<off_t>(from.file_offset + start);
    if (pread(fd, wanted.data(), length, offset) != static_cast<ssize_t>(length)) fail_os("pread");
    if (std::memcmp(found.data(), wanted.data(), length) != 0) fail(fmt::format("wrong bytes among {} at {}", length, offset));
    compared += length;
  }
  return compared;
}

std::vector<piece> in_sequence(std::uint64_t total, std::uint64_t length) {
  std::vector<piece> pieces;
  for (std::uint64_t offset = 0; offset + length <= total; offset += length) pieces.push_back({offset, offset, length});
  return pieces;
}

// Returns pages from all over the file, each with its own place in memory.
std::vector<piece> scattered_pages(std::uint64_t file_bytes, std::size_t count) {
  std::mt19937_64 random(count);
  std::vector<piece> pieces;
  for (std::size_t i = 0; i < count; ++i) pieces.push_back({i * page, random() % (file_bytes / page) * page, page});
  return pieces;
}

struct row {
  const char* name;
  bool cold = false;
  std::size_t calls_counted = 0;  // if not 0: report microseconds per call, for this number of calls
  std::vector<piece> pieces{};
  std::function<void(std::span<const piece>)> work{};
};

class bench {
 public:
  bench(std::string file, std::uint64_t bytes, bool host, bool native, const std::string& library)
      : target_(host, bytes), files_(open_file(file, bytes)), bytes_(bytes) {
    if (native) {
      subject_ = std::make_unique<native_subject>();
    } else {
      subject_ = std::make_unique<cufile_subject>(library);
    }
  }

  void run(const std::vector<std::string>& wanted, int repeats, bool register_memory, bool json, const std::string& label) {
    label_ = label.empty() ? subject_->name().at("library").get<std::string>() : label;
    json_ = json;
    const double open_us = subject_->open();
    tell({{"row", "driver_open"}, {"unit", "us"}, {"best", open_us}, {"median", open_us}, {"repeats", 1}});
    subject_->use(files_, target_, register_memory);
    for (const row& each : rows()) {
      if (wanted.empty() || std::find(wanted.begin(), wanted.end(), each.name) != wanted.end()) measure(each, repeats);
    }
  }

 private:
  [[nodiscard]] std::vector<row> rows() {
    const auto one_by_one = [this](kind file) {
      return [this, file](std::span<const piece> pieces) {
        for (const auto& each : pieces) subject_->read(file, each);
      };
    };
    const auto pages = static_cast<std::size_t>(std::min<std::uint64_t>(16384, bytes_ / page));
    const auto in_batches = static_cast<std::size_t>(std::min<std::uint64_t>(128 * 64, bytes_ / page / 128 * 128));
    return {
        {"hot_one_call", false, 0, {{0, 0, bytes_}}, one_by_one(kind::buffered)},
        {"hot_1m", false, 0, in_sequence(std::min(bytes_, 2048 * mib), mib), one_by_one(kind::buffered)},
        {"hot_1m_8_threads", false, 0, in_sequence(bytes_, mib), [this](std::span<const piece> pieces) { by_threads(pieces, 8); }},
        {"hot_4k", false, pages, scattered_pages(bytes_, pages), one_by_one(kind::buffered)},
        {"batch_128x4k", false, in_batches / 128, scattered_pages(bytes_, in_batches),
         [this](std::span<const piece> pieces) {
           for (std::size_t i = 0; i < pieces.size(); i += 128) subject_->batch(pieces.subspan(i, 128));
         }},
        {"cold_16m", true, 0, in_sequence(std::min(bytes_, 2048 * mib), 16 * mib), one_by_one(kind::direct)},
    };
  }

  // Each thread makes its share of the calls; all threads start at the same time.
  void by_threads(std::span<const piece> pieces, std::size_t count) {
    std::barrier start(static_cast<std::ptrdiff_t>(count));
    std::mutex guard;
    std::exception_ptr problem;
    std::vector<std::jthread> threads;
    const auto share = pieces.size() / count;
    for (std::size_t i = 0; i < count; ++i) {
      const auto mine = pieces.subspan(i * share, i + 1 == count ? pieces.size() - i * share : share);
      threads.emplace_back([&, mine] {
        try {
          target_.use_in_this_thread();
          start.arrive_and_wait();
          for (const auto& each : mine) subject_->read(kind::buffered, each);
        } catch (...) {
          const std::lock_guard lock(guard);
          problem = std::current_exception();
        }
      });
    }
    threads.clear();
    if (problem) std::rethrow_exception(problem);
  }

  void prepare(const row& what) const {
    if (what.cold) {
      make_cold(files_.buffered, bytes_);
    }
  }

  void measure(const row& what, int repeats) {
    if (what.cold && files_.direct < 0) {
      tell({{"row", what.name}, {"skipped", "the file system has no O_DIRECT"}});
      return;
    }
    if (!what.cold) {
      make_hot(files_.buffered, bytes_);
      what.work(what.pieces);  // not measured: the library creates its pools and threads
    }
    std::uint64_t moved = 0;
    for (const auto& each : what.pieces) moved += each.length;
    target_.wipe();
    std::vector<double> figures;
    std::vector<double> cpu_per_gb;
    for (int i = 0; i < repeats; ++i) {
      prepare(what);
      const sample took = timed([&] { what.work(what.pieces); });
      const double gigabytes = static_cast<double>(moved) / 1e9;
      figures.push_back(what.calls_counted > 0 ? took.seconds * 1e6 / static_cast<double>(what.calls_counted) : gigabytes / took.seconds);
      cpu_per_gb.push_back(took.cpu_seconds / gigabytes);
    }
    const auto compared = verify(files_.buffered, target_, what.pieces);
    const auto [least, most] = std::minmax_element(figures.begin(), figures.end());
    tell({{"row", what.name},
          {"unit", what.calls_counted > 0 ? "us" : "GB/s"},
          {"best", what.calls_counted > 0 ? *least : *most},
          {"median", median(figures)},
          {"cpu_s_per_gb", median(cpu_per_gb)},
          {"repeats", repeats},
          {"bytes", moved},
          {"bytes_compared", compared}});
  }

  void tell(nlohmann::json line) const {
    line.update(subject_->name());
    line["label"] = label_;
    line["memory"] = target_.name();
    if (line.contains("skipped")) {
      fmt::print("{:24} {:18} skipped: {}\n", label_, line["row"].get<std::string>(), line["skipped"].get<std::string>());
    } else {
      fmt::print("{:24} {:18} best {:10.3f}  median {:10.3f} {:4}", label_, line["row"].get<std::string>(), line["best"].get<double>(),
                 line["median"].get<double>(), line["unit"].get<std::string>());
      if (line.contains("cpu_s_per_gb")) fmt::print("  {:.4f} CPU s/GB", line["cpu_s_per_gb"].get<double>());
      fmt::print("  ({})\n", target_.name());
    }
    if (json_) fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }

  memory target_;
  descriptors files_;
  std::uint64_t bytes_;
  std::unique_ptr<subject> subject_;
  std::string label_;
  bool json_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures one libcufile.so.0, or Penstock's C++ interface");
  std::string library;
  std::string file;
  std::string label;
  std::uint64_t size_mib = 4096;
  int repeats = 5;
  bool native = false;
  bool host = false;
  bool json = false;
  bool no_register = false;
  std::vector<std::string> rows;
  auto* const by_library = app.add_option("--library", library, "A libcufile.so.0, by its full path");
  app.add_flag("--native", native, "Penstock's C++ interface instead of a library")->excludes(by_library);
  app.add_option("--file", file, "The file to read; made of random bytes where it is missing or of another size")->required();
  app.add_option("--size-mib", size_mib, "Size of the file, a multiple of 16")->check(CLI::Range(16, 1 << 20));
  app.add_option("--repeats", repeats, "Measured passes for each row")->check(CLI::Range(1, 1000));
  app.add_option("--rows", rows, "Only these: hot_one_call hot_1m hot_1m_8_threads hot_4k batch_128x4k cold_16m")->delimiter(',');
  app.add_option("--label", label, "Stands in each line");
  app.add_flag("--host", host, "Host memory instead of a GPU's");
  app.add_flag("--no-register", no_register, "Without cuFileBufRegister");
  app.add_flag("--json", json, "A line of JSON for each row, too");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!native && library.empty()) fail("--library or --native is needed");
    if (size_mib % 16 != 0) fail("--size-mib must be a multiple of 16");
    bench(file, size_mib * mib, host, native, library).run(rows, repeats, !no_register, json, label);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "penstock_cufile_bench: %s\n", problem.what());
    return 1;
  }
  std::fflush(stdout);
  _exit(0);  // the libraries' work at exit is not measured, and NVIDIA's takes long
}
