// A refused system call that Penstock does not need fails no operation, whether the kernel lacks it (ENOSYS), a seccomp filter or a sandbox
// refuses it (EPERM), or a file system does (EINVAL, EOPNOTSUPP). Each call is refused with each error, and all operations run. A new call
// takes one line.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "fault/round_trip.hpp"
#include "penstock/kv.hpp"
#include "penstock/pending_file.hpp"
#include "penstock/pipe.hpp"
#include "support/child.hpp"
#include "support/engines.hpp"
#include "support/lacking.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "support/web_server.hpp"

namespace penstock::testing {
namespace {

struct refused_calls {
  const char* name;
  std::vector<long> numbers;
};

constexpr long statmount_number = 457;
constexpr long cachestat_number = 451;
constexpr long faccessat2_number = 439;
constexpr long epoll_pwait2_number = 441;
#ifdef SYS_chmod
constexpr long chmod_number = SYS_chmod;
constexpr long renameat_number = SYS_renameat;
#else  // aarch64 has the newer calls only
constexpr long chmod_number = SYS_fchmodat;
constexpr long renameat_number = SYS_renameat2;
#endif

const std::vector<refused_calls> calls{
    {"statx", {SYS_statx}},
    {"statfs", {SYS_statfs}},
    {"fstatfs", {SYS_fstatfs}},
    {"faccessat2", {faccessat2_number}},
    {"preadv2", {SYS_preadv2}},
    {"pwritev2", {SYS_pwritev2}},
    {"io_uring_setup", {SYS_io_uring_setup}},
    {"io_uring_enter", {SYS_io_uring_enter}},
    {"io_uring_register", {SYS_io_uring_register}},
    {"copy_file_range", {SYS_copy_file_range}},
    {"fallocate", {SYS_fallocate}},
    {"fdatasync", {SYS_fdatasync}},
    {"fsync", {SYS_fsync}},
    {"sync_file_range", {SYS_sync_file_range}},
    {"fadvise64", {SYS_fadvise64}},
    {"readahead", {SYS_readahead}},
    {"name_to_handle_at", {SYS_name_to_handle_at}},
    {"openat2", {437}},
    {"renameat2", {SYS_renameat2}},
    {"renameat", {renameat_number}},
    {"linkat", {SYS_linkat}},
    {"fchmod", {SYS_fchmod}},
    {"chmod", {chmod_number}},
    {"fchown", {SYS_fchown}},
    {"fsetxattr", {SYS_fsetxattr}},
    {"fgetxattr", {SYS_fgetxattr}},
    {"getxattr", {SYS_getxattr}},
    {"listxattr", {SYS_listxattr}},
    {"fremovexattr", {SYS_fremovexattr}},
    {"memfd_create", {SYS_memfd_create}},
    {"process_vm_readv", {SYS_process_vm_readv}},
    {"process_vm_writev", {SYS_process_vm_writev}},
    {"cachestat", {cachestat_number}},
    {"statmount", {statmount_number}},
    {"mincore", {SYS_mincore}},
    {"madvise", {SYS_madvise}},
    {"mbind", {SYS_mbind}},
    {"get_mempolicy", {SYS_get_mempolicy}},
    {"getcpu", {SYS_getcpu}},
    {"sched_getaffinity", {SYS_sched_getaffinity}},
    {"mlock", {SYS_mlock}},
    {"getrusage", {SYS_getrusage}},
    {"getrandom", {SYS_getrandom}},
    {"prctl", {SYS_prctl}},
    {"uname", {SYS_uname}},
    {"sysinfo", {SYS_sysinfo}},
    {"eventfd2", {SYS_eventfd2}},
    {"kcmp", {SYS_kcmp}},
    {"pidfd_open", {434}},
    {"utimensat", {SYS_utimensat}},
    {"flock", {SYS_flock}},
    {"setsockopt", {SYS_setsockopt}},
    {"accept4", {SYS_accept4}},
    {"epoll_pwait2", {epoll_pwait2_number}},
    {"socketpair", {SYS_socketpair}},
    // As mounts without modes and links have it: CIFS, gcsfuse, goofys, FAT.
    {"modes", {SYS_fchmod, SYS_fchmodat, chmod_number, SYS_fchown, SYS_fchownat}},
    {"links", {SYS_linkat, SYS_renameat2}},
    {"attributes", {SYS_getxattr, SYS_fgetxattr, SYS_fsetxattr, SYS_listxattr, SYS_fremovexattr}},
    {"file_facts", {SYS_statx, SYS_statfs, SYS_fstatfs}},
};

constexpr std::array refusals{EPERM, ENOSYS, EINVAL, EOPNOTSUPP};

std::string text_of(const status& outcome) { return std::string(outcome.message()); }

pipe_operation_options soon() { return {deadline_clock::now() + std::chrono::seconds(20)}; }

// --- the operations. Each says what went wrong; empty: nothing.

std::string carry_bytes(engine& with, const temp_dir& in) { return round_trip(with, in.file("bytes")).run(); }

std::string save(const std::string& path, const std::string& bytes, const pending_file_options& how, const publish_options& publish) {
  auto made = pending_file::create(path, how);
  if (!made) return text_of(made.error());
  if (::write(made->descriptor(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) return "a short write";
  return text_of(made->publish(publish));
}

bool holds(const std::string& path, const std::string& bytes) { return stored_bytes(path) == bytes; }

std::string save_files(engine& /*with*/, const temp_dir& in) {
  for (const bool unnamed : {true, false}) {
    for (const bool replace : {true, false}) {
      const auto path = in.file(fmt::format("saved-{}-{}", unnamed, replace));
      // A second time in its own place, and with a mode.
      for (const int time : {1, 2, 3}) {
        if (!replace && time > 1) continue;
        const auto bytes = fmt::format("bytes {}", time);
        pending_file_options how{.unnamed = unnamed};
        if (time == 3) how.mode = 0600;
        if (auto wrong = save(path, bytes, how, {.replace = replace}); !wrong.empty())
          return fmt::format("save {}, unnamed {}, replace {}: {}", time, unnamed, replace, wrong);
        if (!holds(path, bytes)) return "the saved file has other bytes";
      }
    }
    const auto taken = in.file(fmt::format("taken-{}", unnamed));
    if (auto wrong = save(taken, "first", {}, {}); !wrong.empty()) return wrong;
    if (save(taken, "second", {.unnamed = unnamed}, {.replace = false}).empty() || !holds(taken, "first"))
      return "a file was replaced that was to stay";
  }
  return {};
}

std::string keep_values(engine& with, const temp_dir& in) {
  auto opened = kv::store::open(with, in.file("kv"), {.capacity_bytes = std::uint64_t{8} << 20});
  if (!opened) return text_of(opened.error());
  std::string value(10'000, 'v');
  std::string seen(value.size(), '?');
  const std::array written{kv::memory_piece{value.data(), value.size()}};
  const std::array read{kv::memory_piece{seen.data(), seen.size()}};
  const std::array put{kv::item{"key", written}};
  const std::array got{kv::item{"key", read}};
  if (const auto ended = opened->put(put); !ended.front().error.ok()) return text_of(ended.front().error);
  if (const auto ended = opened->get(got); !ended.front().error.ok()) return text_of(ended.front().error);
  return seen == value ? "" : "the store gives other bytes";
}

// --- pipes, between two processes

constexpr std::size_t tensor_bytes = (std::size_t{3} << 20) + 11;

std::string send_tensor(const penstock::pipe& to) {
  const auto content = pattern::make(tensor_bytes, 7);
  outgoing_message message;
  message.metadata = "a step";
  message.payloads.push_back({content.data(), 5000, ""});
  message.tensors.push_back({content.data(), content.size(), ""});
  if (const auto sent = to.send(message, soon()).wait(); !sent.ok()) return "send: " + text_of(sent.error);
  incoming_message answer;
  if (const auto got = to.next(answer, soon()).wait(); !got.ok()) return "no answer: " + text_of(got.error);
  return answer.metadata() == "thanks" ? "" : "another answer";
}

std::string receive_tensor(const penstock::pipe& from) {
  incoming_message message;
  if (const auto got = from.next(message, soon()).wait(); !got.ok()) return "next: " + text_of(got.error);
  std::vector<std::byte> room(tensor_bytes);
  if (const auto got = message.receive({{room.data(), room.size()}}, soon()).wait(); !got.ok()) return "receive: " + text_of(got.error);
  if (room != pattern::make(tensor_bytes, 7)) return "the tensor has other bytes";
  const auto sent = from.send({"thanks", {}, {}}, soon()).wait();
  return sent.ok() ? "" : "answer: " + text_of(sent.error);
}

std::string use_pipe(engine& with, const std::string& url) {
  auto context = pipe_context::create(with);
  if (!context) return "context: " + text_of(context.error());
  auto listener = context->listen(url);
  if (!listener) return "listen: " + text_of(listener.error());
  const std::string name = listener->url();
  const pid_t sender = ::fork();
  if (sender == 0) {
    auto own = engine::create(without_cuda());
    if (!own) ::_exit(3);
    auto of_sender = pipe_context::create(*own);
    auto to = of_sender ? of_sender->connect(name) : result<penstock::pipe>(of_sender.error());
    const auto wrong = to ? send_tensor(*to) : "connect: " + text_of(to.error());
    if (!wrong.empty()) std::fprintf(stderr, "the sender: %s\n", wrong.c_str());
    ::_exit(wrong.empty() ? 0 : 1);
  }
  penstock::pipe here;
  const auto accepted = listener->accept(here, soon()).wait();
  auto wrong = accepted.ok() ? receive_tensor(here) : "accept: " + text_of(accepted.error);
  int outcome = -1;
  if (!accepted.ok()) ::kill(sender, SIGKILL);
  if (::waitpid(sender, &outcome, 0) == sender && outcome != 0 && wrong.empty()) wrong = "the sender failed";
  return wrong;
}

[[maybe_unused]] std::string use_unix_pipe(engine& with, const temp_dir& in) { return use_pipe(with, "unix://" + in.file("pipe")); }
[[maybe_unused]] std::string use_tcp_pipe(engine& with, const temp_dir& /*in*/) { return use_pipe(with, "tcp://127.0.0.1:0"); }

// --- objects on a server

constexpr std::size_t object_bytes = (std::size_t{5} << 20) + 3;
std::string object_url;  // NOLINT: of the server that the test runs

std::string read_object(engine& with, const std::string& url) {
  auto opened = with.open_remote(url, {});
  if (!opened) return "open: " + text_of(opened.error());
  std::vector<std::byte> room(object_bytes);
  const auto got = opened->read(room.data(), room.size(), 0);
  if (!got.ok()) return "read: " + text_of(got.error);
  return room == pattern::make(object_bytes, 9) ? "" : "the object has other bytes";
}

std::string read_from_server(engine& with, const temp_dir& /*in*/) { return read_object(with, object_url); }

std::string read_through_node_cache(engine& /*with*/, const temp_dir& in) {
  for (const int time : {1, 2}) {  // the second from the folder
    auto options = without_cuda();
    options.node_cache_dir = in.file("cache");
    auto caching = engine::create(options);
    if (!caching) return "engine: " + text_of(caching.error());
    if (auto wrong = read_object(*caching, object_url); !wrong.empty()) return fmt::format("time {}: {}", time, wrong);
  }
  return {};
}

struct operation_of {
  const char* name;
  std::string (*run)(engine& with, const temp_dir& in);
  bool is_quick = false;
};
// A new door is one line.
const std::vector<operation_of> operations {
  {"carry bytes", carry_bytes}, {"save files", save_files, true}, {"keep values", keep_values, true},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which do not survive a fork of several threads
      {"use a unix pipe", use_unix_pipe}, {"use a tcp pipe", use_tcp_pipe},
#endif
      {"read from a server", read_from_server}, {"read through the node cache", read_through_node_cache},
};

class refused_call : public ::testing::TestWithParam<refused_calls> {};

TEST_P(refused_call, fails_no_operation) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  if (GetParam().name == std::string_view("sched_getaffinity")) GTEST_SKIP() << "a sanitizer makes this call when a thread starts";
#endif
  PENSTOCK_SKIP_IF(lacks_filters());
  for (const int error : refusals) {
    const auto dir = temp_dir::on_build_disk();
    EXPECT_EQ(run_in_child([&] {
                ::alarm(60);                                        // a hang fails the test
                web_server server(pattern::make(object_bytes, 9));  // whose threads are not filtered
                object_url = server.url();
                for (const long each : GetParam().numbers) {
                  if (!deny_system_call(each, error)) return 2;
                }
                auto made = engine::create(without_cuda());
                if (!made) return std::fprintf(stderr, "engine: %s\n", text_of(made.error()).c_str()), 3;
                int failed = 0;
                for (const auto& each : operations) {
                  if (!each.is_quick && error != EPERM && error != ENOSYS) continue;
                  const auto wrong = each.run(*made, dir);
                  if (wrong.empty()) continue;
                  std::fprintf(stderr, "%s with errno %d: %s: %s\n", GetParam().name, error, each.name, wrong.c_str());
                  ++failed;
                }
                return failed == 0 ? 0 : 1;
              }),
              0)
        << GetParam().name << " with errno " << error;
  }
}

INSTANTIATE_TEST_SUITE_P(each, refused_call, ::testing::ValuesIn(calls), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace penstock::testing
