#include "pipes.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <penstock/pipe.hpp>
#include <string>
#include <utility>
#include <vector>

#include "buffers.hpp"
#include "device.hpp"
#include "errors.hpp"
#include "futures.hpp"
#include "gil.hpp"
#include "options.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;
using seconds = std::optional<double>;

pipe_operation_options within(seconds timeout) {
  pipe_operation_options options;
  options.calls_at_once = true;  // safe because flight::tell() does not block
  if (timeout) options.deadline = deadline_after(*timeout);
  return options;
}

std::string text_of(const nb::bytes& from) { return {from.c_str(), from.size()}; }
nb::bytes bytes_of(std::string_view from) { return nb::bytes(from.data(), from.size()); }

// The data behind a Python pipe object. Closing does not block; destruction may wait for threads that need the GIL.
struct python_pipe {
  std::shared_ptr<penstock::pipe> target = std::make_shared<penstock::pipe>();
  ~python_pipe() {
    const without_gil unlocked;
    target.reset();
  }
  python_pipe() = default;
  explicit python_pipe(penstock::pipe made) : target(std::make_shared<penstock::pipe>(std::move(made))) {}
  python_pipe(python_pipe&&) noexcept = default;
  python_pipe& operator=(python_pipe&&) = delete;
};

struct python_listener {
  std::shared_ptr<pipe_listener> target;
};

struct python_message {
  std::shared_ptr<incoming_message> target = std::make_shared<incoming_message>();
};

// Memory allocated for tensors. Arrays take it over.
class made_memory {
 public:
  explicit made_memory(std::size_t bytes) : data_(new (std::align_val_t{64}) std::byte[bytes]), size_(bytes) {}
  made_memory(made_memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  made_memory& operator=(made_memory&&) = delete;
  ~made_memory() { ::operator delete[](data_, std::align_val_t{64}); }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  // Returns a one-dimensional array of bytes.
  [[nodiscard]] nb::object into_array() {
    auto* const data = std::exchange(data_, nullptr);
    const nb::capsule owner(data, [](void* gone) noexcept { ::operator delete[](gone, std::align_val_t{64}); });
    return nb::cast(nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(data, {size_}, owner));
  }

 private:
  std::byte* data_;
  std::size_t size_;
};

// The targets for a message's tensors: the user's buffers, or new memory.
struct landing {
  std::vector<incoming_target> given;
  bool is_given = false;
  bool heeds_targets = false;  // if the sender requests a device for a tensor, Python creates the buffer
  bool asks_python = false;    // Python creates the buffers once the message has arrived
  std::vector<made_memory> made;

  // Runs without the GIL. Returns an error if Python must create the buffers.
  result<std::vector<incoming_target>> room(const incoming_message& message) {
    if (is_given) return given;
    const auto tensors = message.tensors();
    asks_python = heeds_targets && std::any_of(tensors.begin(), tensors.end(), [](const auto& each) {
                    return !each.target_device.empty() && each.target_device != "host";
                  });
    if (asks_python) return status(errc::unsupported, "Python must allocate the memory for these tensors");
    std::vector<incoming_target> targets;
    for (const auto& each : tensors) {
      auto& memory = made.emplace_back(each.length);
      targets.push_back({memory.data(), memory.size()});
    }
    return targets;
  }
};

// Stream handles, one per buffer.
using stream_handles = std::vector<std::uintptr_t>;

void* stream_of(const stream_handles& streams, std::size_t index) {
  return index < streams.size() ? reinterpret_cast<void*>(streams[index]) : nullptr;
}

// Calls use with each object and its index.
template <class Use>
void each_buffer(nb::handle buffers, Use use) {
  std::size_t index = 0;
  for (const nb::handle each : nb::borrow<nb::sequence>(buffers)) use(each, index++);
}

void take_buffers(landing& where, flight& of, nb::handle into, const stream_handles& streams) {
  where.is_given = true;
  each_buffer(into, [&](nb::handle each, std::size_t index) {
    const auto& memory = of.keep(each, memory_use::target, memory_order::c, {"into", index, false});
    where.given.push_back({memory.data(), memory.size(), stream_of(streams, index)});
  });
}

nb::list payloads_of(const incoming_message& message) {
  nb::list out;
  for (const auto& each : message.payloads()) out.append(nb::bytes(reinterpret_cast<const char*>(each.bytes.data()), each.bytes.size()));
  return out;
}

nb::list tensors_of(const incoming_message& message) {
  nb::list out;
  for (const auto& each : message.tensors()) {
    out.append(nb::make_tuple(each.length, bytes_of(each.metadata), std::string(each.device), std::string(each.target_device)));
  }
  return out;
}

// Returns finish(metadata, payloads, tensors, arrays), or None if finish is None. arrays is None if the user gave buffers.
nb::object finished(const nb::object& finish, const incoming_message& message, landing& where) {
  if (finish.is_none()) return nb::none();
  nb::object arrays = nb::none();
  if (!where.is_given) {
    nb::list made;
    for (auto& each : where.made) made.append(each.into_array());
    arrays = made;
  }
  return finish(bytes_of(message.metadata()), payloads_of(message), tensors_of(message), arrays);
}

future send(const python_pipe& self, const nb::bytes& metadata, const nb::sequence& payloads, const nb::sequence& tensors,
            const std::vector<nb::bytes>& facts, const std::vector<std::string>& devices, const stream_handles& streams, seconds timeout) {
  future made(new flight(flight::may_never_end{}));
  auto message = std::make_shared<outgoing_message>();
  message->metadata = text_of(metadata);
  each_buffer(payloads, [&](nb::handle each, std::size_t index) {
    const auto& memory = made->keep(each, memory_use::source, memory_order::c, {"payloads", index, false});
    message->payloads.push_back({memory.data(), memory.size()});
  });
  each_buffer(tensors, [&](nb::handle each, std::size_t index) {
    const auto& memory = made->keep(each, memory_use::source, memory_order::c, {"tensors", index, false});
    message->tensors.push_back({memory.data(), memory.size()});
    auto& part = message->tensors.back();
    if (index < facts.size()) part.metadata = text_of(facts[index]);
    if (index < devices.size()) part.target_device = devices[index];
    part.stream = stream_of(streams, index);
  });
  made->start_other([&, target = self.target](io_callback told) { return target->send(*message, within(timeout), std::move(told)); });
  return made;
}

future next(const python_pipe& self, seconds timeout, nb::object finish) {
  future made(new flight(flight::may_never_end{}));
  const auto message = std::make_shared<incoming_message>();
  made->start_other([&, target = self.target](io_callback told) { return target->next(*message, within(timeout), std::move(told)); },
                    [message, finish = std::move(finish)] { return finish(python_message{message}); });
  return made;
}

future receive(const python_pipe& self, nb::handle into, const stream_handles& streams, seconds timeout, nb::object finish) {
  future made(new flight(flight::may_never_end{}));
  const auto message = std::make_shared<incoming_message>();
  const auto where = std::make_shared<landing>();
  take_buffers(*where, *made, into, streams);
  made->start_other(
      [&, target = self.target](io_callback told) { return target->receive(*message, where->given, within(timeout), std::move(told)); },
      [message, where, finish = std::move(finish)] { return finished(finish, *message, *where); });
  return made;
}

// make(message) returns buffers and streams for the message's tensors. asks: call make always, never, or (None) only if the sender requests
// a device for a tensor. Otherwise host memory is allocated without Python, so that nothing waits for Python.
future receive_anywhere(const python_pipe& self, std::optional<bool> asks, nb::object make, seconds timeout, nb::object finish) {
  future made(new flight(flight::may_never_end{}));
  const auto message = std::make_shared<incoming_message>();
  const auto where = std::make_shared<landing>();
  const auto options = within(timeout);
  const bool always = asks.value_or(false);
  where->asks_python = always;
  where->heeds_targets = !asks.has_value();
  made->start_in_two(
      [&, target = self.target](io_callback told) {
        if (always) return target->next(*message, options, std::move(told));
        return target->receive(
            *message, [where](const incoming_message& come) { return where->room(come); }, options, std::move(told));
      },
      [&of = *made, message, where, options, always, make = std::move(make)](const io_result& outcome) -> std::optional<flight::starter> {
        if (!where->asks_python || outcome.ok() != always) return std::nullopt;
        try {
          const nb::object room = make(python_message{message});
          take_buffers(*where, of, room[0], nb::cast<stream_handles>(room[1]));
        } catch (...) {
          *message = incoming_message();  // notifies the sender now: the exception's traceback may keep the message alive
          throw;
        }
        return [message, where, options](io_callback told) { return message->receive(where->given, options, std::move(told)); };
      },
      [message, where, finish = std::move(finish)] { return finished(finish, *message, *where); });
  return made;
}

template <bool on_stream>
future receive_message(const python_message& self, nb::handle into, const stream_handles& streams, seconds timeout, nb::object finish) {
  future made(new flight(flight::may_never_end{}));
  const auto where = std::make_shared<landing>();
  if (!into.is_none()) take_buffers(*where, *made, into, streams);
  const auto message = self.target;
  made->start_other(
      [&](io_callback told) {
        auto targets = where->room(*message);
        if (on_stream) return message->receive_on_stream(*std::move(targets), within(timeout), std::move(told));
        return message->receive(*std::move(targets), within(timeout), std::move(told));
      },
      [message, where, finish = std::move(finish)] { return finished(finish, *message, *where); });
  return made;
}

future accept(const python_listener& self, seconds timeout, nb::object finish) {
  future made(new flight(flight::may_never_end{}));
  const auto accepted = std::make_shared<penstock::pipe>();
  made->start_other([&, target = self.target](io_callback told) { return target->accept(*accepted, within(timeout), std::move(told)); },
                    [accepted, finish = std::move(finish)] { return finish(python_pipe(std::move(*accepted))); });
  return made;
}

// Certificate, key, CA, server name.
using tls_words = std::optional<std::vector<std::string>>;

pipe_context context_of(const std::vector<std::string>& channels, const nb::bytes& secret, unsigned connections, const tls_words& tls) {
  const auto engine = shared_engine();
  pipe_options options{channels, text_of(secret), connections};
  if (tls && tls->size() != 4) throw nb::type_error("tls must be a certificate, a key, a CA and a name");
  if (tls) options.tls = pipe_tls{tls->at(0), tls->at(1), tls->at(2), tls->at(3)};
  auto made = [&] {
    const without_gil unlocked;  // reads files
    return pipe_context::create(engine, options);
  }();
  if (!made) raise(made.error());
  return *std::move(made);
}

python_listener listen(const std::string& url, const std::vector<std::string>& channels, const nb::bytes& secret, unsigned connections,
                       const tls_words& tls) {
  const auto context = context_of(channels, secret, connections, tls);
  auto made = [&] {
    const without_gil unlocked;
    return context.listen(url);
  }();
  if (!made) raise(made.error());
  return {std::make_shared<pipe_listener>(*std::move(made))};
}

python_pipe connect(const std::string& url, const std::vector<std::string>& channels, const nb::bytes& secret, unsigned connections,
                    const tls_words& tls) {
  const auto context = context_of(channels, secret, connections, tls);
  auto made = [&] {
    const without_gil unlocked;
    return context.connect(url);
  }();
  if (!made) raise(made.error());
  return python_pipe(*std::move(made));
}

nb::object explain_pipe(const python_pipe& self) {
  const auto until = deadline_clock::now() + std::chrono::seconds(10);
  const auto look = [&](deadline_clock::time_point most) {
    const without_gil unlocked;
    return self.target->explain(most);
  };
  auto told = look(deadline_clock::now() + interrupt_interval);
  while (!told && told.error().code() == errc::timed_out) {
    if (interrupted()) throw nb::python_error();
    if (deadline_clock::now() >= until) raise({errc::timed_out, "the peer has not replied for 10 s"});
    told = look(std::min(until, deadline_clock::now() + interrupt_interval));
  }
  if (!told) raise(told.error());
  const auto list = [](const std::vector<channel_choice>& from) {
    nb::list out;
    for (const auto& each : from) out.append(nb::make_tuple(each.name, each.chosen, each.refusal));
    return out;
  };
  nb::list received;
  for (const auto& each : told->received) received.append(nb::make_tuple(each.from, each.to, list(each.channels)));
  return nb::make_tuple(told->transport, told->peer, list(told->sending), list(told->receiving), received, told->connections);
}

nb::list pipe_stats(const python_pipe& self) {
  nb::list out;
  for (const auto& each : self.target->stats()) {
    out.append(
        nb::make_tuple(each.name, each.sent_tensors, each.sent_bytes, each.received_tensors, each.received_bytes, each.pushed_tensors));
  }
  return out;
}

}  // namespace

void add_pipes(nb::module_& module) {
  nb::class_<python_message>(module, "_PipeMessage")
      .def_prop_ro("metadata", [](const python_message& self) { return bytes_of(self.target->metadata()); })
      .def_prop_ro("payloads", [](const python_message& self) { return payloads_of(*self.target); })
      .def_prop_ro("tensors", [](const python_message& self) { return tensors_of(*self.target); })
      .def("receive", &receive_message<false>, "into"_a.none(), "streams"_a, "timeout"_a.none(), "finish"_a.none())
      .def("receive_on_stream", &receive_message<true>, "into"_a, "streams"_a, "timeout"_a.none(), "finish"_a.none());
  nb::class_<python_pipe>(module, "_Pipe")
      .def("send", &send, "metadata"_a, "payloads"_a, "tensors"_a, "facts"_a, "devices"_a, "streams"_a, "timeout"_a.none())
      .def("next", &next, "timeout"_a.none(), "finish"_a)
      .def("receive", &receive, "into"_a, "streams"_a, "timeout"_a.none(), "finish"_a.none())
      .def("receive_anywhere", &receive_anywhere, "asks"_a.none(), "make"_a, "timeout"_a.none(), "finish"_a.none())
      .def("explain", &explain_pipe)
      .def("stats", &pipe_stats)
      .def("close", [](const python_pipe& self) {
        const without_gil unlocked;
        self.target->close();
      });
  nb::class_<python_listener>(module, "_PipeListener")
      .def_prop_ro("url", [](const python_listener& self) { return self.target->url(); })
      .def_prop_ro("refused", [](const python_listener& self) { return self.target->refused(); })
      .def("accept", &accept, "timeout"_a.none(), "finish"_a)
      .def("close", [](python_listener& self) {
        // A thread in accept() keeps the old listener until the call returns.
        auto closed = std::exchange(self.target, std::make_shared<pipe_listener>());
        const without_gil unlocked;
        closed.reset();
      });
  module.def("_pipe_listen", &listen, "url"_a, "channels"_a, "secret"_a, "connections"_a, "tls"_a = nb::none());
  module.def("_pipe_connect", &connect, "url"_a, "channels"_a, "secret"_a, "connections"_a, "tls"_a = nb::none());
}

}  // namespace penstock::python
