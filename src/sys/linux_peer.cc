#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "base/file_size_limit.hpp"
#include "base/refused_call.hpp"
#include "sys/peer.hpp"
#include "sys/wake_up.hpp"

namespace penstock::sys {

owned_descriptor::~owned_descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

shared_region::~shared_region() {
  if (data_ != nullptr) (void)::munmap(data_, size_);
}

namespace {

constexpr std::size_t most_passed = 64;  // descriptors per call

constexpr int backlog = 1024;
constexpr std::uint64_t interrupt_token = ~std::uint64_t{0};

struct raw_address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
  int family = AF_UNIX;
};

std::string described(const socket_address& address) {
  switch (address.kind) {
    case socket_address::family::unix_path:
      return "unix://" + address.name;
    case socket_address::family::unix_abstract:
      return "unix:@" + address.name;
    case socket_address::family::tcp:
      break;
  }
  return fmt::format("tcp://{}:{}", address.name, address.port);
}

result<raw_address> unix_address(const socket_address& address) {
  raw_address raw;
  auto& in = reinterpret_cast<sockaddr_un&>(raw.bytes);
  in.sun_family = AF_UNIX;
  const std::size_t before = address.kind == socket_address::family::unix_abstract ? 1 : 0;  // a leading zero
  if (address.name.empty() || before + address.name.size() >= sizeof(in.sun_path)) {
    return status(errc::invalid_argument,
                  fmt::format("{}: the name must be 1 to {} bytes long", described(address), sizeof(in.sun_path) - 2));
  }
  std::copy(address.name.begin(), address.name.end(), in.sun_path + before);
  raw.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + before + address.name.size() + (before == 0 ? 1 : 0));
  return raw;
}

result<std::vector<raw_address>> tcp_addresses(const socket_address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = AF_UNSPEC;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.name.c_str(), fmt::format("{}", address.port).c_str(), &hints, &found);
  if (error != 0) return status(errc::not_found, fmt::format("{}: {}", described(address), gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, &freeaddrinfo);
  std::vector<raw_address> all;
  for (const auto* each = found; each != nullptr; each = each->ai_next) {
    auto& raw = all.emplace_back();
    raw.family = each->ai_family;
    raw.length = each->ai_addrlen;
    std::memcpy(&raw.bytes, each->ai_addr, each->ai_addrlen);
  }
  return all;
}

// Returns at least one address, in the order in which to try them.
result<std::vector<raw_address>> all_raw(const socket_address& address) {
  if (address.kind == socket_address::family::tcp) return tcp_addresses(address);
  const auto raw = unix_address(address);
  if (!raw) return raw.error();
  return std::vector{*raw};
}

result<socket_address> in_numbers(const sockaddr* raw, socklen_t length, const char* call) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int error = getnameinfo(raw, length, host.data(), host.size(), port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  const bool is_tcp = raw->sa_family == AF_INET || raw->sa_family == AF_INET6;
  if (error != 0 || !is_tcp) return status(errc::invalid_argument, fmt::format("{}: not a tcp socket", call));
  return socket_address{socket_address::family::tcp, host.data(), static_cast<std::uint16_t>(std::atoi(port.data()))};
}

result<owned_descriptor> make_socket(const raw_address& address) {
  const int fd = ::socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return status::from_errno(errno, "socket");
  return owned_descriptor(fd);
}

// Disables Nagle's algorithm, so that small frames are sent at once.
void set_no_delay(int fd) {
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // harmless failure on unix sockets
}

const sockaddr* sockaddr_of(const raw_address& raw) { return reinterpret_cast<const sockaddr*>(&raw.bytes); }

// Returns true if a socket file exists but no process listens on it.
bool is_left_behind(const socket_address& at, const raw_address& raw) {
  struct stat facts {};
  if (::stat(at.name.c_str(), &facts) != 0 || !S_ISSOCK(facts.st_mode)) return false;
  const auto probe = make_socket(raw);
  return probe && ::connect(probe->get(), sockaddr_of(raw), raw.length) != 0 && errno == ECONNREFUSED;
}

class epoll_poller final : public poller {
 public:
  static result<std::unique_ptr<poller>> make() {
    auto made = std::make_unique<epoll_poller>();
    made->epoll_ = owned_descriptor(epoll_create1(EPOLL_CLOEXEC));
    if (made->epoll_.get() < 0) return status::from_errno(errno, "epoll_create1");
    auto alarm = wake_up::make();
    if (!alarm) return alarm.error();
    made->alarm_ = *std::move(alarm);
    if (auto problem = made->add(made->alarm_.descriptor(), interrupt_token, false); !problem.ok()) return problem;
    return std::unique_ptr<poller>(std::move(made));
  }

  status add(int fd, std::uint64_t token, bool writable) override { return control(EPOLL_CTL_ADD, fd, token, writable); }
  status change(int fd, std::uint64_t token, bool writable) override { return control(EPOLL_CTL_MOD, fd, token, writable); }
  void remove(int fd) noexcept override { (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

  result<std::size_t> wait(std::span<socket_event> out, std::chrono::microseconds most_time) override {
    std::array<epoll_event, 64> events;
    const int most = static_cast<int>(std::min(out.size(), events.size()));
    const timespec limit{0, static_cast<long>(std::min<std::int64_t>(most_time.count(), 999'999) * 1000)};
    const bool limited = most_time != for_ever && most_time.count() > 0;
    int count = limited ? epoll_pwait2(epoll_.get(), events.data(), most, &limit, nullptr) : 0;
    if (!limited || (count < 0 && is_refused_call(errno))) {  // Linux before 5.11
      count = epoll_wait(epoll_.get(), events.data(), most, most_time == for_ever ? -1 : limited ? 1 : 0);
    }
    if (count < 0 && errno == EINTR) return std::size_t{0};
    if (count < 0) return status::from_errno(errno, "epoll_wait");
    std::size_t told = 0;
    for (int i = 0; i < count; ++i) {
      const auto& event = events[static_cast<std::size_t>(i)];
      if (event.data.u64 == interrupt_token) {
        alarm_.clear();
        continue;
      }
      out[told++] = {event.data.u64, (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0,
                     (event.events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0};
    }
    return told;
  }

  void interrupt() noexcept override { alarm_.wake(); }

 private:
  status control(int what, int fd, std::uint64_t token, bool writable) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP | (writable ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
    event.data.u64 = token;
    if (epoll_ctl(epoll_.get(), what, fd, &event) != 0) return status::from_errno(errno, "epoll_ctl");
    return {};
  }

  owned_descriptor epoll_;
  wake_up alarm_;
};

class linux_peer_door final : public peer {
 public:
  result<owned_descriptor> listen(const socket_address& at) override {
    const auto all = all_raw(at);
    if (!all) return all.error();
    result<owned_descriptor> made = status(errc::not_found, described(at));
    for (const auto& raw : *all) {
      made = listen_at(at, raw);
      if (made || !is_elsewhere(made.error())) break;
    }
    return made;
  }

  result<std::uint16_t> port_of(int listening) override {
    sockaddr_storage bytes{};
    socklen_t length = sizeof(bytes);
    if (getsockname(listening, reinterpret_cast<sockaddr*>(&bytes), &length) != 0) return status::from_errno(errno, "getsockname");
    if (bytes.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(bytes).sin_port);
    if (bytes.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(bytes).sin6_port);
    return std::uint16_t{0};
  }

  result<socket_address> address_of(int fd, bool of_other) override {
    sockaddr_storage bytes{};
    socklen_t length = sizeof(bytes);
    auto* const raw = reinterpret_cast<sockaddr*>(&bytes);
    const char* const call = of_other ? "getpeername" : "getsockname";
    if ((of_other ? getpeername(fd, raw, &length) : getsockname(fd, raw, &length)) != 0) return status::from_errno(errno, call);
    return in_numbers(raw, length, call);
  }

  result<owned_descriptor> accept(int listening) override {
    int fd = ::accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && is_refused_call(errno)) {
      fd = ::accept(listening, nullptr, nullptr);
      if (fd >= 0 && (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0)) {
        const owned_descriptor closed(fd);
        return status::from_errno(errno, "fcntl of an accepted connection");
      }
    }
    if (fd < 0) return status::from_errno(errno == EINTR || errno == ECONNABORTED ? EAGAIN : errno, "accept");
    set_no_delay(fd);
    return owned_descriptor(fd);
  }

  result<std::vector<socket_address>> addresses_of(const socket_address& host) override {
    if (host.kind != socket_address::family::tcp) return std::vector{host};
    const auto all = tcp_addresses(host);
    if (!all) return all.error();
    std::vector<socket_address> made;
    for (const auto& raw : *all) {
      auto each = in_numbers(sockaddr_of(raw), raw.length, "getnameinfo");
      if (each) made.push_back(*std::move(each));
    }
    return made;
  }

  result<owned_descriptor> connect(const socket_address& to) override {
    const auto all = all_raw(to);
    if (!all) return all.error();
    const auto& raw = all->front();
    auto made = make_socket(raw);
    if (!made) return made.error();
    set_no_delay(made->get());
    if (::connect(made->get(), sockaddr_of(raw), raw.length) != 0 && errno != EINPROGRESS && errno != EINTR) {
      return status::from_errno(errno, "connect " + described(to));
    }
    return made;
  }

  status connected(int fd) override {
    int error = 0;
    socklen_t length = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    return error == 0 ? status() : status::from_errno(error, "connect");
  }

  void await_connected(int fd, std::chrono::milliseconds most) noexcept override {
    pollfd asked{fd, POLLOUT, 0};
    (void)::poll(&asked, 1, static_cast<int>(most.count()));  // not retried on EINTR: the signal was sent to end the wait
  }

  result<credentials> credentials_of(int fd) override {
    ucred told{};
    socklen_t length = sizeof(told);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &told, &length) != 0) return status::from_errno(errno, "getsockopt SO_PEERCRED");
    return credentials{told.pid, told.uid};
  }

  result<std::size_t> send(int fd, std::span<const iovec> parts, std::span<const int> passed) override {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(most_passed * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    if (passed.size() > most_passed) return status(errc::invalid_argument, "too many descriptors in one message");
    if (!passed.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(passed.size_bytes());
      auto* const head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(passed.size_bytes());
      std::memcpy(CMSG_DATA(head), passed.data(), passed.size_bytes());
    }
    for (;;) {
      const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) return static_cast<std::size_t>(sent);
      if (errno != EINTR) return status::from_errno(errno, "sendmsg");
    }
  }

  result<std::size_t> receive(int fd, std::span<const iovec> parts, std::vector<owned_descriptor>* passed) override {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(most_passed * sizeof(int))> control;
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    if (passed != nullptr) passed->reserve(passed->size() + most_passed);  // so that no received descriptor can leak
    for (;;) {
      message.msg_control = passed != nullptr ? control.data() : nullptr;
      message.msg_controllen = passed != nullptr ? control.size() : 0;
      const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      if (got >= 0) {
        if (passed != nullptr) take_passed(message, *passed);
        return static_cast<std::size_t>(got);
      }
      if (errno != EINTR) return status::from_errno(errno, "recvmsg");
    }
  }

  bool has_something(int fd) noexcept override {
    pollfd asked{fd, POLLIN, 0};
    return ::poll(&asked, 1, 0) == 1;
  }

  void finish(int fd, bool receiving_too) noexcept override { (void)::shutdown(fd, receiving_too ? SHUT_RDWR : SHUT_WR); }

  result<std::unique_ptr<poller>> make_poller() override { return epoll_poller::make(); }

  // The memory is sealed, so that neither process can shrink it while the other has it mapped.
  result<offered_region> make_region(std::size_t bytes) override {
    offered_region made;
    made.by = owned_descriptor(memfd_create("penstock-pipe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (made.by.get() < 0) return status::from_errno(errno, "memfd_create");
    if (!fits_file_size_limit(bytes)) return status::from_errno(EFBIG, "ftruncate of shared memory");
    if (ftruncate(made.by.get(), static_cast<off_t>(bytes)) != 0) return status::from_errno(errno, "ftruncate of shared memory");
    if (fcntl(made.by.get(), F_ADD_SEALS, size_seals | F_SEAL_SEAL) != 0) return status::from_errno(errno, "sealing shared memory");
    auto mapped = map(made.by.get(), bytes);
    if (!mapped) return mapped.error();
    made.memory = *std::move(mapped);
    return made;
  }

  result<shared_region> map_region(int by, std::size_t bytes) override {
    struct stat facts {};
    const int seals = fcntl(by, F_GET_SEALS);
    if (seals < 0 || (seals & size_seals) != size_seals || fstat(by, &facts) != 0 || static_cast<std::size_t>(facts.st_size) != bytes) {
      return status(errc::invalid_argument, fmt::format("the descriptor does not refer to sealed shared memory of {} bytes", bytes));
    }
    return map(by, bytes);
  }

  status read_memory(pid_t process, std::uint64_t address, std::byte* target, std::size_t bytes) override {
    while (bytes > 0) {
      const iovec local{target, bytes};
      const iovec remote{reinterpret_cast<void*>(address), bytes};  // NOLINT(performance-no-int-to-ptr): an address in the other process
      const ssize_t got = process_vm_readv(process, &local, 1, &remote, 1, 0);
      if (got < 0 && errno == EFAULT) {
        return {errc::bad_memory, fmt::format("process {} has no memory mapped at {:#x}", process, address), error_domain::os, EFAULT};
      }
      if (got < 0) return status::from_errno(errno, fmt::format("process_vm_readv of process {}", process));
      if (got == 0) return {errc::bad_memory, fmt::format("process {} has no memory mapped at {:#x}", process, address)};
      address += static_cast<std::uint64_t>(got);
      target += got;
      bytes -= static_cast<std::size_t>(got);
    }
    return {};
  }

  result<owned_descriptor> watch_process(pid_t process) override {
    owned_descriptor by(static_cast<int>(syscall(SYS_pidfd_open, process, 0U)));
    if (by.get() >= 0) return by;
    const int error = errno;
    const auto what = fmt::format("pidfd_open of process {}", process);
    if (error == ESRCH) return status(errc::not_found, what, error_domain::os, error);
    if (is_refused_call(error)) return status(errc::unsupported, what, error_domain::os, error);
    return status::from_errno(error, what);
  }

  // A process closes its devices before its exit becomes visible: pidfd_open(2), exit_files() in the kernel's do_exit().
  bool has_ended(int watched_process) noexcept override {
    pollfd asked{watched_process, POLLIN, 0};
    return ::poll(&asked, 1, 0) == 1 && (asked.revents & POLLIN) != 0;
  }

 private:
  // Returns true if this machine does not have the address, or its kernel does not support the family.
  static bool is_elsewhere(const status& why) noexcept {
    return why.domain() == error_domain::os && (why.native() == EADDRNOTAVAIL || why.native() == EAFNOSUPPORT);
  }

  static result<owned_descriptor> listen_at(const socket_address& at, const raw_address& raw) {
    auto made = make_socket(raw);
    if (!made) return made.error();
    const int on = 1;
    if (at.kind == socket_address::family::tcp) (void)setsockopt(made->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (at.kind == socket_address::family::unix_path && is_left_behind(at, raw)) (void)::unlink(at.name.c_str());
    if (::bind(made->get(), sockaddr_of(raw), raw.length) != 0) return status::from_errno(errno, "bind " + described(at));
    if (::listen(made->get(), backlog) != 0) return status::from_errno(errno, "listen " + described(at));
    return made;
  }

  static constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW;

  static result<shared_region> map(int fd, std::size_t bytes) {
    void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return status::from_errno(errno, "mmap of shared memory");
    return shared_region(static_cast<std::byte*>(at), bytes);
  }

  static void take_passed(msghdr& message, std::vector<owned_descriptor>& into) {
    for (auto* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(fd));
        owned_descriptor come(fd);
        into.push_back(std::move(come));
      }
    }
  }
};

}  // namespace

std::shared_ptr<peer> linux_peer() { return std::make_shared<linux_peer_door>(); }

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

}  // namespace penstock::sys
