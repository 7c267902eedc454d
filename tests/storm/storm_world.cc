#include "storm/storm_world.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include "memory/failing_allocations.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"

namespace penstock::testing {
namespace {

std::optional<std::uint64_t> number_from_environment(const char* name) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read only
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

// The errno that a call fails with, if it does.
std::optional<int> draw_fault(std::string_view call, std::uint64_t number, std::uint64_t seed) {
  struct way {
    std::string_view call;
    unsigned one_in;
    int error;
  };
  static constexpr std::array ways{
      way{"pread", 300, EIO},        way{"pwrite", 300, EIO},     way{"pwrite", 301, ENOSPC},     way{"ring.read", 200, EIO},
      way{"ring.read", 60, EAGAIN},  way{"ring.write", 200, EIO}, way{"ring.write", 60, EINTR},   way{"ring.submit", 200, EBUSY},
      way{"map_memory", 10, ENOMEM}, way{"make_ring", 3, EPERM},  way{"resident_bytes", 40, EIO}, way{"memory_now", 10, EIO},
      way{"map_file", 10, ENOMEM},   way{"reopen", 10, EACCES},   way{"file_size", 200, EIO},     way{"ring.register", 3, ENOMEM},
  };
  for (const auto& each : ways) {
    if (each.call == call && pattern::word_at(seed + each.one_in, number) % each.one_in == 0) return each.error;
  }
  return std::nullopt;
}

}  // namespace

storm_settings storm_settings::from_environment(std::chrono::seconds usual) {
  storm_settings found;
  found.seed = number_from_environment("PENSTOCK_STORM_SEED").value_or(std::random_device()());
  found.duration =
      std::chrono::seconds(number_from_environment("PENSTOCK_STORM_SECONDS").value_or(static_cast<std::uint64_t>(usual.count())));
  found.lanes = static_cast<unsigned>(number_from_environment("PENSTOCK_STORM_LANES").value_or(0));
  const char* text = std::getenv("PENSTOCK_STORM_WITHOUT");  // NOLINT(concurrency-mt-unsafe): read only
  const std::string_view without = text == nullptr ? "" : text;
  const auto asked = [&](std::string_view what) { return without.find(what) == std::string_view::npos; };
  found.allocations = asked("allocations");
  found.faults = asked("faults");
  found.stalls = asked("stalls");
  found.forks = asked("forks");
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  found.forks = false;  // neither survives a fork of several threads (g++ 12)
#endif
  return found;
}

storm_files::storm_files(const storm_settings& settings) : bytes_(settings.threads * storm_region_bytes + storm_constant_bytes) {
  const auto content = pattern::make(bytes_, storm_seed_of_files);
  for (const auto* name : {"one", "two"}) {
    paths_.push_back(directory_.file(name));
    store_file(paths_.back(), content);
  }
  if (!fuse_world::missing().empty()) return;
  mount_.emplace();
  mounted_ = &mount_->add("mounted", bytes_, storm_seed_of_files);
  paths_.push_back(mount_->path_of("mounted"));
}

void storm_files::stall(bool on) {
  if (mounted_ != nullptr) mounted_->held_calls = on ? fuse_reads | fuse_writes : 0;
}

std::shared_ptr<storm_engine> storm_engine::make(const storm_files& files, const engine_options& options, bool faulty, std::uint64_t seed) {
  std::shared_ptr<storm_engine> made(new storm_engine);
  made->doors_ = core::real_seams(options);
  if (faulty) {
    made->kernel_ = std::make_shared<faulty_kernel>(made->doors_.kernel);
    made->doors_.kernel = made->kernel_;
  }
  auto doors = made->doors_;
  std::optional<result<penstock::engine>> engine;
  {
    const exposed_allocations exposed;
    engine.emplace(core::make_engine(options, std::move(doors)));
  }
  if (!*engine) {
    EXPECT_EQ(engine->error().code(), errc::out_of_memory) << engine->error().message();
    return nullptr;
  }
  made->engine_.emplace(*std::move(*engine));
  for (const bool direct : {false, true}) {
    for (const auto& path : files.paths()) {
      auto opened = made->engine_->open(path, {.read = true, .write = true, .direct_writes = direct});
      EXPECT_TRUE(opened.ok()) << opened.error().message();
      if (!opened.ok()) return nullptr;
      made->handles_.push_back(*std::move(opened));
    }
  }
  auto session = made->doors_.host->open(0, nullptr);
  EXPECT_TRUE(session.ok()) << session.error().message();
  if (!session.ok()) return nullptr;
  made->session_ = *session;
  if (faulty) made->begin_faults(seed);
  return made;
}

void storm_engine::begin_faults(std::uint64_t seed) {
  kernel_->reorder_completions(seed);
  kernel_->set_hook([seed](std::string_view call, std::uint64_t number) {
    const reliable_allocations reliable;
    return draw_fault(call, number, seed);
  });
}

storm_engine::~storm_engine() {
  engine_.reset();
  if (kernel_ != nullptr) kernel_->disarm();
  handles_.clear();
  if (kernel_ == nullptr) return;
  // A request gives its file back just after its callback; an engine ends on its own time.
  for (int i = 0; i < 1000 && kernel_->open_descriptors() != 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(kernel_->stray_closes(), 0);
  EXPECT_EQ(kernel_->open_files(), std::vector<std::string>());
}

}  // namespace penstock::testing
