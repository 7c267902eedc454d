// quiesce(): what is left of the library in the process, and what calls on other threads do meanwhile.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/engine_core.hpp"
#include "core/gate.hpp"
#include "core/resident.hpp"
#include "penstock/detail/shared_memory.hpp"
#include "penstock/kv.hpp"
#include "penstock/pipe.hpp"
#include "penstock/quiesce.hpp"
#include "support/engines.hpp"
#include "support/forwarding_kernel.hpp"
#include "support/gated_kernel.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr std::size_t file_bytes = std::size_t{2} << 20;
constexpr int rounds = 20;

std::vector<std::string> left_over_now() {
  std::vector<std::string> found;
  for (const auto& each : fs::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(each.path() / "comm"), name);
    if (name.starts_with("penstock-")) found.push_back(name);
  }
  for (const auto& each : fs::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    const auto link = fs::read_symlink(each.path(), closed).string();
    if (link.starts_with("anon_inode:[io_uring]") || link.starts_with("socket:")) found.push_back(link);
  }
  return found;
}

// A thread that was joined may still be listed for a moment.
std::vector<std::string> left_over() {
  auto found = left_over_now();
  for (int looks = 0; looks < 1000 && !found.empty(); ++looks) {
    std::this_thread::sleep_for(1ms);
    found = left_over_now();
  }
  return found;
}

// An object whose functions are slow, and that no call may use while it is put to rest.
class slow_resident final : public core::resident {
 public:
  void call() {
    const core::calling inside;
    calls_.fetch_add(1);
    calls_.fetch_sub(1);
  }
  [[nodiscard]] std::string obstacle() const override {
    std::this_thread::sleep_for(1ms);
    return {};
  }
  status rest(deadline_clock::time_point /*until*/) override {
    for (const auto until = deadline_clock::now() + 1ms; deadline_clock::now() < until;) EXPECT_EQ(calls_.load(), 0);
    return {};
  }
  void wake() noexcept override { std::this_thread::sleep_for(2ms); }

 private:
  std::atomic<int> calls_{0};
};

// An object whose destructor waits for `end`.
class ending_resident final : public core::resident {
 public:
  explicit ending_resident(std::shared_future<void> end, std::promise<void>& begun) : end_(std::move(end)), begun_(begun) {}
  ~ending_resident() override {
    begun_.set_value();
    end_.wait();
  }
  status rest(deadline_clock::time_point /*until*/) override { return {}; }

 private:
  const std::shared_future<void> end_;
  std::promise<void>& begun_;
};

void drop_from_page_cache(const std::string& name) {
  const int fd = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_EQ(::fsync(fd), 0);
  EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(fd);
}

// The real kernel, but its rings never return a completion. Remembers them, because the engine never closes them.
class deaf_kernel final : public forwarding_kernel {
 public:
  static std::vector<sys::ring*>& kept() {
    static auto* const all = new std::vector<sys::ring*>;
    return *all;
  }
  result<std::unique_ptr<sys::ring>> make_ring(unsigned entries) override {
    auto made = inner().make_ring(entries);
    if (!made) return made.error();
    auto deaf = std::make_unique<ring>(*std::move(made));
    kept().push_back(deaf.get());
    return std::unique_ptr<sys::ring>(std::move(deaf));
  }

 private:
  class ring final : public sys::ring {
   public:
    explicit ring(std::unique_ptr<sys::ring> inner) : inner_(std::move(inner)) {}
    status register_buffer(unsigned slot, void* base, std::size_t length) override { return inner_->register_buffer(slot, base, length); }
    bool queue_read(int fd, void* target, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int slot) override {
      return inner_->queue_read(fd, target, length, offset, token, slot);
    }
    bool queue_write(int fd, const void* source, std::uint32_t length, std::uint64_t offset, std::uint64_t token, int slot) override {
      return inner_->queue_write(fd, source, length, offset, token, slot);
    }
    status submit() override { return inner_->submit(); }
    result<std::size_t> reap(std::span<sys::ring_completion> /*out*/, bool /*wait*/) override { return status(errc::io, "deaf"); }
    void interrupt() noexcept override { inner_->interrupt(); }

   private:
    std::unique_ptr<sys::ring> inner_;
  };
};

struct quiesce_test : ::testing::Test {
  temp_dir dir = temp_dir::on_build_disk();
  std::vector<std::byte> content = pattern::make(file_bytes, 7);
  std::string name = dir.file("data");
  quiesce_test() { store_file(name, content); }
};

// A read at offset 4096 on a thread of its own, which waits in the kernel until release().
class held_read {
 public:
  explicit held_read(const std::string& name) : with_(made(before_)), file_(opened_file(with_, name)) {
    before_.shut({4096});
    reader_ = std::thread([this] { EXPECT_TRUE(file_.read(memory_.data(), memory_.size(), 4096).ok()); });
    before_.await(1);
  }
  [[nodiscard]] const file& from() const { return file_; }
  void release() {
    before_.open();
    reader_.join();
  }

 private:
  static engine made(gate& before) {
    auto with = core::make_engine(without_cuda(), {std::make_shared<gated_kernel>(before), nullptr, device::make_host_driver()});
    EXPECT_TRUE(with.ok()) << with.error().message();
    return *std::move(with);
  }

  gate before_;
  engine with_;
  file file_;
  std::array<std::byte, 4096> memory_{};
  std::thread reader_;
};

TEST_F(quiesce_test, leaves_no_thread_and_no_ring_and_the_next_read_gets_the_same_bytes) {
  const auto with = made_engine(without_cuda());
  const auto file = opened_file(with, name, {.cache = cache_use::bypass});
  const auto memory = with.allocate("host:0", file_bytes);
  ASSERT_TRUE(memory.ok());
  const auto* const seen = static_cast<const std::byte*>(*with.cpu_address(memory->data(), file_bytes));
  for (int i = 0; i < rounds; ++i) {
    EXPECT_TRUE(file.read(memory->data(), file_bytes, 0).ok());
    EXPECT_TRUE(std::equal(content.begin(), content.end(), seen));
    EXPECT_NE(left_over_now(), std::vector<std::string>());
    ASSERT_EQ(quiesce().message(), "");
    EXPECT_EQ(left_over(), std::vector<std::string>());
    EXPECT_EQ(with.stats().pinned_bytes, 0);
  }
}

TEST_F(quiesce_test, an_engine_that_is_created_after_all_resting_engines_were_closed_can_be_frozen) {
  std::array<std::byte, 4096> into{};
  for (int i = 0; i < rounds; ++i) {
    {
      const auto with = made_engine(without_cuda());
      EXPECT_TRUE(opened_file(with, name).read(into.data(), into.size(), 0).ok());
      EXPECT_EQ(quiesce().message(), "");
      EXPECT_EQ(left_over(), std::vector<std::string>());
    }
    const core::calling wakes_the_process;
  }
}

TEST_F(quiesce_test, calls_on_other_threads_wait_or_complete) {
  const auto with = made_engine(without_cuda());
  const auto file = opened_file(with, name, {.read = true, .write = true, .cache = cache_use::bypass});
  auto stored = kv::store::open(with, dir.file("store"), {.capacity_bytes = file_bytes});
  ASSERT_TRUE(stored.ok());
  std::atomic<bool> stop{false};
  const auto repeat = [&](auto call) {
    return std::thread([&stop, call] {
      while (!stop.load()) call();
    });
  };
  std::vector<std::thread> busy;
  busy.push_back(repeat([&] {
    std::vector<std::byte> into(8192);
    EXPECT_TRUE(file.read(into.data(), into.size(), 0).ok());
  }));
  busy.push_back(repeat([&] {
    const auto memory = with.allocate("host:0", file_bytes);
    EXPECT_TRUE(file.read(memory->data(), file_bytes, 0).ok());
  }));
  busy.push_back(repeat([&] {  // a callback that starts another request
    std::array<std::byte, 4096> into{};
    std::promise<void> second;
    auto first = file.read_async(into.data(), into.size(), 0, {}, [&](const io_result&) {
      file.read_async(into.data(), into.size(), 4096, {},
                      [&](const io_result& ended) {
                        EXPECT_TRUE(ended.ok());
                        second.set_value();
                      })
          .wait();
    });
    EXPECT_TRUE(first.wait().ok());
    second.get_future().wait();
  }));
  busy.push_back(repeat([&] {
    std::vector<std::byte> value(5000, std::byte{3});
    const std::array<kv::memory_piece, 1> piece{{{value.data(), value.size()}}};
    EXPECT_EQ(stored->put_async({{"key", piece}}).wait().front().ended, kv::outcome::done);
    EXPECT_EQ(stored->get({{"key", piece}}).front().ended, kv::outcome::done);
  }));
  for (int i = 0; i < rounds; ++i) EXPECT_EQ(quiesce().message(), "");
  stop.store(true);
  for (auto& each : busy) each.join();
}

TEST_F(quiesce_test, two_threads_may_call_it_at_once) {
  const auto with = made_engine(without_cuda());
  std::thread other([] {
    for (int i = 0; i < rounds; ++i) EXPECT_EQ(quiesce().message(), "");
  });
  for (int i = 0; i < rounds; ++i) EXPECT_EQ(quiesce().message(), "");
  other.join();
}

TEST_F(quiesce_test, no_call_is_in_progress_while_objects_that_another_thread_has_just_woken_are_put_to_rest) {
  const auto slow = std::make_shared<slow_resident>();
  core::gate::add(slow);
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop.load()) slow->call();
  });
  for (int i = 0; i < rounds; ++i) EXPECT_EQ(quiesce().message(), "");
  stop.store(true);
  caller.join();
}

TEST_F(quiesce_test, waits_for_an_object_that_another_thread_is_destroying) {
  std::promise<void> begun;
  std::promise<void> end;
  std::thread other([&] { core::gate::add(std::make_shared<ending_resident>(end.get_future().share(), begun)); });
  begun.get_future().wait();
  const auto late = quiesce(1ms);
  EXPECT_EQ(late.code(), errc::timed_out);
  EXPECT_EQ(late.message(), "quiesce: another thread is still closing an engine, a store or a pipe");
  end.set_value();
  EXPECT_EQ(quiesce().message(), "");
  other.join();
}

TEST_F(quiesce_test, other_threads_may_create_and_close_engines) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < 3; ++i) {
    busy.emplace_back([&] {
      while (!stop.load()) {
        const auto with = made_engine(without_cuda());
        std::array<std::byte, 4096> into{};
        std::promise<void> called_back;
        opened_file(with, name).read_async(into.data(), into.size(), 0, {}, [&](const io_result& ended) {
          EXPECT_TRUE(ended.ok());
          called_back.set_value();
        });
        called_back.get_future().wait();
      }
    });
  }
  for (int i = 0; i < rounds; ++i) EXPECT_EQ(quiesce().message(), "");
  stop.store(true);
  for (auto& each : busy) each.join();
  EXPECT_EQ(quiesce().message(), "");
  EXPECT_EQ(left_over(), std::vector<std::string>());
}

// In a process of its own, because such a ring is never closed.
TEST_F(quiesce_test, a_ring_that_has_stopped_answering_is_named) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (const auto ring = sys::make_kernel()->make_ring(1); !ring) GTEST_SKIP() << ring.error().message();
  const auto use_and_exit = [&] {
    const auto with = core::make_engine(without_cuda(), {std::make_shared<deaf_kernel>(), nullptr, device::make_host_driver()});
    if (!with.ok()) _exit(1);
    const auto file = opened_file(*with, name, {.cache = cache_use::bypass});
    const auto memory = with->allocate("host:0", file_bytes);
    drop_from_page_cache(name);
    (void)file.read(memory->data(), file_bytes, 0);
    const bool was_used = !deaf_kernel::kept().empty();  // false if the file system keeps its pages
    const auto refused = quiesce();
    const bool is_named = refused.code() == errc::unsupported && refused.message().find("has stopped answering") != std::string_view::npos;
    _exit(is_named == was_used && file.read(memory->data(), file_bytes, 0).ok() ? 0 : 2);
  };
  EXPECT_EXIT(use_and_exit(), ::testing::ExitedWithCode(0), "");
}

TEST_F(quiesce_test, memory_of_another_process_is_named_until_it_is_unmapped) {
  const auto with = made_engine(without_cuda());
  const auto memory = with.allocate("host:0", file_bytes);
  const auto shared = detail::share_memory(with, memory->data());
  ASSERT_TRUE(shared.ok()) << shared.error().message();
  {
    const auto mapped = detail::open_shared_memory(with, "host:0", *shared, file_bytes, getpid());
    ASSERT_TRUE(mapped.ok()) << mapped.error().message();
    EXPECT_EQ(quiesce().message(), "quiesce: this process cannot be frozen: close the device memory of another process (1 in use) first");
  }
  if (shared->descriptor >= 0) ::close(shared->descriptor);
  EXPECT_EQ(quiesce().message(), "");
}

TEST_F(quiesce_test, a_thread_that_waits_with_a_lock_that_a_callback_needs_goes_on) {
  const auto with = made_engine(without_cuda());
  const auto file = opened_file(with, name);
  std::mutex lock;
  std::array<std::byte, 4096> into{};
  std::promise<void> calls_back;
  std::unique_lock held(lock);
  auto first = file.read_async(into.data(), into.size(), 0, {}, [&](const io_result&) {
    calls_back.set_value();
    const std::lock_guard guard(lock);
  });
  calls_back.get_future().wait();
  std::thread other([] { EXPECT_EQ(quiesce().message(), ""); });
  for (int i = 0; i < 2000; ++i) EXPECT_TRUE(file.read(into.data(), into.size(), 0).ok());
  held.unlock();
  other.join();
  EXPECT_TRUE(first.wait().ok());
}

TEST_F(quiesce_test, a_deadline_names_the_request_that_is_in_flight) {
  held_read held(name);
  const auto late = quiesce(1ms);
  EXPECT_EQ(late.code(), errc::timed_out);
  EXPECT_EQ(late.message(), "quiesce: still in flight: read 4096 at 4096 of " + name);
  std::array<std::byte, 4096> other{};
  EXPECT_TRUE(held.from().read(other.data(), other.size(), 0).ok());  // everything remains usable
  held.release();
  EXPECT_EQ(quiesce().message(), "");
}

TEST_F(quiesce_test, a_callback_may_not_call_it) {
  const auto with = made_engine(without_cuda());
  const auto file = opened_file(with, name);
  std::array<std::byte, 4096> into{};
  status seen;
  EXPECT_TRUE(file.read_async(into.data(), into.size(), 0, {}, [&](const io_result&) { seen = quiesce(); }).wait().ok());
  EXPECT_EQ(seen.code(), errc::invalid_argument);
}

TEST_F(quiesce_test, an_open_pipe_or_listener_is_named_until_it_is_closed) {
  const auto with = made_engine(without_cuda());
  const auto context = pipe_context::create(with, {});
  ASSERT_TRUE(context.ok()) << context.error().message();
  auto listener = context->listen("unix:" + dir.file("door"));
  ASSERT_TRUE(listener.ok()) << listener.error().message();
  auto refused = quiesce();
  EXPECT_EQ(refused.code(), errc::unsupported);
  EXPECT_NE(refused.message().find("the listener at " + listener->url()), std::string_view::npos) << refused.message();
  auto client = context->connect(listener->url());
  ASSERT_TRUE(client.ok()) << client.error().message();
  pipe accepted;
  EXPECT_TRUE(listener->accept(accepted).wait().ok());
  *listener = pipe_listener();
  refused = quiesce();
  EXPECT_NE(refused.message().find("pipe to " + ("unix:" + dir.file("door"))), std::string_view::npos) << refused.message();
  EXPECT_NE(refused.message().find("pipe from process"), std::string_view::npos) << refused.message();
  client->close();
  accepted.close();
  EXPECT_EQ(quiesce().message(), "");
  EXPECT_EQ(left_over(), std::vector<std::string>());
  EXPECT_TRUE(context->listen("unix:" + dir.file("door")).ok());
}

TEST_F(quiesce_test, a_forked_child_does_not_wait_for_calls_of_its_parent) {
  held_read held(name);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    bool right = quiesce().ok();
    auto options = without_cuda();
    options.use_board = false;  // starts no thread, which ThreadSanitizer does not allow here
    const auto own = made_engine(options);
    std::array<std::byte, 4096> into{};
    right = right && opened_file(own, name).read(into.data(), into.size(), 0).ok() && quiesce().ok();
    _exit(right ? 0 : 1);
  }
  int outcome = -1;
  EXPECT_EQ(waitpid(child, &outcome, 0), child);
  EXPECT_EQ(outcome, 0);
  held.release();
}

}  // namespace
}  // namespace penstock::testing
