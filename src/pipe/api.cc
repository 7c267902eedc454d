#include <chrono>
#include <utility>

#include "base/no_memory.hpp"
#include "core/engine_core.hpp"
#include "core/gate.hpp"
#include "penstock/pipe.hpp"
#include "pipe/posted_receive.hpp"
#include "pipe/server.hpp"

namespace penstock {

namespace {

// Returns an operation that failed before it started, and calls its callback.
operation ended(const status& why, const io_callback& callback) {
  if (callback) callback({0, why});
  return operation(core::refused(why));
}

status of_parent() { return {errc::forked, "the pipe belongs to the parent process"}; }

// Returns an error if the object cannot be used. gone: the message if it is null.
template <class Core>
status usable(const std::shared_ptr<Core>& of, const char* gone) {
  if (of == nullptr) return {errc::closed, gone};
  return of->forked() ? of_parent() : status();
}

constexpr const char* pipe_gone = "the pipe was closed";
constexpr const char* context_gone = "the context has been moved from";

template <class Begin>
operation begun(const status& may, const io_callback& callback, Begin begin) {
  if (!may.ok()) return ended(may, callback);
  return or_without_memory([&] { return operation(begin()); }, [&] { return ended(no_memory(), callback); });
}

}  // namespace

// --- incoming_message

incoming_message::incoming_message(std::shared_ptr<pipes::arrived_message> made) noexcept : core_(std::move(made)) {}
incoming_message::incoming_message(incoming_message&&) noexcept = default;

incoming_message& incoming_message::operator=(incoming_message&& other) noexcept {
  if (this != &other) {
    drop();
    core_ = std::move(other.core_);
  }
  return *this;
}

incoming_message::~incoming_message() { drop(); }

void incoming_message::drop() noexcept {
  if (const auto gone = std::exchange(core_, nullptr); gone != nullptr) gone->pipe->dropped(*gone);
}

std::string_view incoming_message::metadata() const noexcept { return core_ == nullptr ? std::string_view() : core_->facts.metadata; }

std::vector<incoming_payload> incoming_message::payloads() const {
  std::vector<incoming_payload> told;
  if (core_ == nullptr) return told;
  auto rest = core_->contents();
  for (std::size_t i = 0; i < core_->facts.payload_lengths.size(); ++i) {
    const auto length = core_->facts.payload_lengths[i];
    told.push_back({rest.first(length), core_->facts.payload_metadata[i]});
    rest = rest.subspan(length);
  }
  return told;
}

std::vector<incoming_tensor> incoming_message::tensors() const {
  std::vector<incoming_tensor> told;
  if (core_ == nullptr) return told;
  for (const auto& each : core_->facts.tensors)
    told.push_back(
        {each.length, each.metadata, each.device.empty() ? std::string_view("host") : std::string_view(each.device), each.target_device});
  return told;
}

operation incoming_message::receive(std::vector<incoming_target> targets, const pipe_operation_options& options, io_callback callback) {
  const auto may = core_ == nullptr ? status(errc::closed, "the message is empty") : usable(core_->pipe, pipe_gone);
  return begun(may, callback, [&] { return pipes::session::receive(core_, std::move(targets), options, callback); });
}

operation incoming_message::receive_on_stream(std::vector<incoming_target> targets, const pipe_operation_options& options,
                                              io_callback callback) {
  const auto may = core_ == nullptr ? status(errc::closed, "the message is empty") : usable(core_->pipe, pipe_gone);
  return begun(may, callback, [&] { return pipes::session::receive(core_, std::move(targets), options, callback, true); });
}

// --- pipe

pipe::pipe(std::shared_ptr<pipes::session> made) noexcept : core_(std::move(made)) {}
pipe::pipe(pipe&&) noexcept = default;

pipe& pipe::operator=(pipe&& other) noexcept {
  if (this != &other) {
    close();
    core_ = std::move(other.core_);
  }
  return *this;
}

pipe::~pipe() { close(); }

operation pipe::send(const outgoing_message& message, const pipe_operation_options& options, io_callback callback) const {
  return begun(usable(core_, pipe_gone), callback, [&] { return core_->send(message, options, callback); });
}

operation pipe::next(incoming_message& message, const pipe_operation_options& options, io_callback callback) const {
  return begun(usable(core_, pipe_gone), callback, [&] { return core_->next(message, options, callback); });
}

namespace {

operation post(const std::shared_ptr<pipes::session>& from, incoming_message& message, pipe_room room, std::vector<incoming_target> targets,
               const pipe_operation_options& options, const io_callback& callback) {
  return begun(usable(from, pipe_gone), callback, [&] {
    auto* const op = new pipes::posted_receive(from, message, std::move(room), std::move(targets), options);
    op->set_callback(callback, options.calls_at_once);
    op->retain();
    op->begin();
    return op;
  });
}

}  // namespace

operation pipe::receive(incoming_message& message, pipe_room room, const pipe_operation_options& options, io_callback callback) const {
  if (!room) return ended({errc::invalid_argument, "the function that returns the targets is empty"}, callback);
  return post(core_, message, std::move(room), {}, options, callback);
}

operation pipe::receive(incoming_message& message, std::vector<incoming_target> targets, const pipe_operation_options& options,
                        io_callback callback) const {
  return post(core_, message, {}, std::move(targets), options, callback);
}

result<pipe_plan> pipe::explain() const {
  auto told = explain(deadline_clock::now() + std::chrono::seconds(10));
  if (told || told.error().code() != errc::timed_out) return told;
  return status(errc::timed_out, "the peer has not replied for 10 s");
}

result<pipe_plan> pipe::explain(deadline_clock::time_point until) const {
  if (auto problem = usable(core_, pipe_gone); !problem.ok()) return problem;
  return or_no_memory([&] { return core_->explain(until); });
}

std::vector<channel_stats> pipe::stats() const { return usable(core_, pipe_gone).ok() ? core_->stats() : std::vector<channel_stats>(); }

void pipe::close() noexcept {
  if (core_ != nullptr) core_->close();
}

// --- listeners and contexts

pipe_listener::pipe_listener(std::shared_ptr<pipes::listener> made) noexcept : core_(std::move(made)) {}
pipe_listener::pipe_listener(pipe_listener&&) noexcept = default;

pipe_listener& pipe_listener::operator=(pipe_listener&& other) noexcept {
  if (this != &other) {
    if (core_ != nullptr) core_->close();
    core_ = std::move(other.core_);
  }
  return *this;
}

pipe_listener::~pipe_listener() {
  if (core_ != nullptr) core_->close();
}

std::string pipe_listener::url() const { return core_ == nullptr ? std::string() : core_->url(); }

std::uint64_t pipe_listener::refused() const noexcept { return core_ == nullptr ? 0 : core_->refused(); }

operation pipe_listener::accept(pipe& accepted, const pipe_operation_options& options, io_callback callback) const {
  return begun(usable(core_, "the listener was closed"), callback, [&] { return core_->accept(accepted, options, callback); });
}

pipe_context::pipe_context(std::shared_ptr<pipes::server> made) noexcept : core_(std::move(made)) {}
pipe_context::pipe_context(pipe_context&&) noexcept = default;
pipe_context& pipe_context::operator=(pipe_context&&) noexcept = default;
pipe_context::~pipe_context() = default;

result<pipe_context> pipe_context::create(const engine& with, const pipe_options& options) {
  const core::calling call;
  if (with.core() == nullptr) return status(errc::closed, "the engine has been moved from");
  return or_no_memory([&]() -> result<pipe_context> {
    auto made = pipes::server::make(with.core(), sys::linux_peer(), options);
    if (!made) return made.error();
    return pipe_context(*std::move(made));
  });
}

result<pipe_listener> pipe_context::listen(const std::string& url) const {
  const core::calling call;
  if (auto problem = usable(core_, context_gone); !problem.ok()) return problem;
  return or_no_memory([&]() -> result<pipe_listener> {
    auto made = core_->listen(url);
    if (!made) return made.error();
    return pipe_listener(*std::move(made));
  });
}

result<pipe> pipe_context::connect(const std::string& url) const {
  const core::calling call;
  if (auto problem = usable(core_, context_gone); !problem.ok()) return problem;
  return or_no_memory([&]() -> result<pipe> {
    auto made = core_->connect(url);
    if (!made) return made.error();
    return pipe(*std::move(made));
  });
}

}  // namespace penstock
