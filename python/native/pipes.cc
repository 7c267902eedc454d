#include "pipes.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

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
  options.calls_at_once = true;  // flight::tell() does not block
  if (timeout) options.deadline = deadline_after(*timeout);
  return options;
}

std::string text_of(const nb::bytes& from) { return {from.c_str(), from.size()}; }
nb::bytes bytes_of(std::string_view from) { return nb::bytes(from.data(), from.size()); }

// What Python's objects hold. Closing waits for nothing; destroying may wait for threads that want the GIL.
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

// Memory that was made for tensors, which arrays take over.
class made_memory {
 public:
  explicit made_memory(std::size_t bytes) : data_(new (std::align_val_t{64}) std::byte[bytes]), size_(bytes) {}
  made_memory(made_memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  made_memory& operator=(made_memory&&) = delete;
  ~made_memory() { ::operator delete[](data_, std::align_val_t{64}); }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  // One dimension of bytes.
  [[nodiscard]] nb::object into_array() {
    auto* const data = std::exchange(data_, nullptr);
    const nb::capsule owner(data, [](void* gone) noexcept { ::operator delete[](gone, std::align_val_t{64}); });
    return nb::cast(nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(data, {size_}, owner));
  }

 private:
  std::byte* data_;
  std::size_t size_;
};

// Where the tensors of a message go: into buffers of the user's, or into memory that is made for them.
struct landing {
  std::vector<incoming_target> given;
  bool is_given = false;
  std::vector<made_memory> made;

  result<std::vector<incoming_target>> room(const incoming_message& message) {
    if (is_given) return given;
    std::vector<incoming_target> targets;
    for (const auto& each : message.tensors()) {
      auto& memory = made.emplace_back(each.length);
      targets.push_back({memory.data(), memory.size()});
    }
    return targets;
  }
};

// Handles of streams, one for each buffer.
using stream_handles = std::vector<std::uintptr_t>;

void* stream_of(const stream_handles& streams, std::size_t index) {
  return index < streams.size() ? reinterpret_cast<void*>(streams[index]) : nullptr;
}

std::shared_ptr<landing> landing_in(flight& of, nb::handle into, const stream_handles& streams) {
  auto where = std::make_shared<landing>();
  where->is_given = !into.is_none();
  if (!where->is_given) return where;
  for (const nb::handle each : nb::borrow<nb::sequence>(into)) {
    const auto& memory = of.keep(each, memory_use::target);
    where->given.push_back({memory.data(), memory.size(), stream_of(streams, where->given.size())});
  }
  return where;
}

// finish(message, arrays): arrays None where the user gave buffers.
nb::object finished(const nb::object& finish, const std::shared_ptr<incoming_message>& message, landing& where) {
  nb::object arrays = nb::none();
  if (!where.is_given) {
    nb::list made;
    for (auto& each : where.made) made.append(each.into_array());
    arrays = made;
  }
  return finish(python_message{message}, arrays);
}

future send(const python_pipe& self, const nb::bytes& metadata, const nb::sequence& payloads, const nb::sequence& tensors,
            const std::vector<nb::bytes>& facts, const stream_handles& streams, seconds timeout) {
  future made(new flight(flight::of_a_pipe{}));
  auto message = std::make_shared<outgoing_message>();
  message->metadata = text_of(metadata);
  const auto part = [&](nb::handle each) {
    const auto& memory = made->keep(each, memory_use::source);
    return outgoing_part{memory.data(), memory.size(), {}, nullptr};
  };
  for (const nb::handle each : payloads) message->payloads.push_back(part(each));
  for (const nb::handle each : tensors) message->tensors.push_back(part(each));
  for (std::size_t i = 0; i < facts.size() && i < message->tensors.size(); ++i) message->tensors[i].metadata = text_of(facts[i]);
  for (std::size_t i = 0; i < message->tensors.size(); ++i) message->tensors[i].stream = stream_of(streams, i);
  made->start_other([&, target = self.target](io_callback told) { return target->send(*message, within(timeout), std::move(told)); });
  return made;
}

future next(const python_pipe& self, seconds timeout, nb::object finish) {
  future made(new flight(flight::of_a_pipe{}));
  const auto message = std::make_shared<incoming_message>();
  made->start_other([&, target = self.target](io_callback told) { return target->next(*message, within(timeout), std::move(told)); },
                    [message, finish = std::move(finish)] { return finish(python_message{message}); });
  return made;
}

future receive(const python_pipe& self, nb::handle into, const stream_handles& streams, seconds timeout, nb::object finish) {
  future made(new flight(flight::of_a_pipe{}));
  const auto message = std::make_shared<incoming_message>();
  const auto where = landing_in(*made, into, streams);
  made->start_other(
      [&, target = self.target](io_callback told) {
        if (where->is_given) return target->receive(*message, where->given, within(timeout), std::move(told));
        return target->receive(
            *message, [where](const incoming_message& come) { return where->room(come); }, within(timeout), std::move(told));
      },
      [message, where, finish = std::move(finish)] { return finished(finish, message, *where); });
  return made;
}

future receive_message(const python_message& self, nb::handle into, const stream_handles& streams, seconds timeout, nb::object finish) {
  future made(new flight(flight::of_a_pipe{}));
  const auto where = landing_in(*made, into, streams);
  const auto message = self.target;
  made->start_other(
      [&](io_callback told) {
        auto targets = where->room(*message);
        return message->receive(*std::move(targets), within(timeout), std::move(told));
      },
      [message, where, finish = std::move(finish)] { return finished(finish, message, *where); });
  return made;
}

future accept(const python_listener& self, seconds timeout, nb::object finish) {
  future made(new flight(flight::of_a_pipe{}));
  const auto accepted = std::make_shared<penstock::pipe>();
  made->start_other([&, target = self.target](io_callback told) { return target->accept(*accepted, within(timeout), std::move(told)); },
                    [accepted, finish = std::move(finish)] { return finish(python_pipe(std::move(*accepted))); });
  return made;
}

pipe_context context_of(const std::vector<std::string>& channels, const nb::bytes& secret) {
  const auto engine = shared_engine();
  auto made = pipe_context::create(engine, {channels, text_of(secret)});
  if (!made) raise(made.error());
  return *std::move(made);
}

python_listener listen(const std::string& url, const std::vector<std::string>& channels, const nb::bytes& secret) {
  const auto context = context_of(channels, secret);
  auto made = [&] {
    const without_gil unlocked;
    return context.listen(url);
  }();
  if (!made) raise(made.error());
  return {std::make_shared<pipe_listener>(*std::move(made))};
}

python_pipe connect(const std::string& url, const std::vector<std::string>& channels, const nb::bytes& secret) {
  const auto context = context_of(channels, secret);
  auto made = [&] {
    const without_gil unlocked;
    return context.connect(url);
  }();
  if (!made) raise(made.error());
  return python_pipe(*std::move(made));
}

nb::object explain(const python_pipe& self) {
  const auto told = [&] {
    const without_gil unlocked;
    return self.target->explain();
  }();
  if (!told) raise(told.error());
  const auto list = [](const std::vector<channel_choice>& from) {
    nb::list out;
    for (const auto& each : from) out.append(nb::make_tuple(each.name, each.chosen, each.refusal));
    return out;
  };
  nb::list received;
  for (const auto& each : told->received) received.append(nb::make_tuple(each.from, each.to, list(each.channels)));
  return nb::make_tuple(told->transport, told->peer, list(told->sending), list(told->receiving), received);
}

nb::list stats(const python_pipe& self) {
  nb::list out;
  for (const auto& each : self.target->stats()) {
    out.append(nb::make_tuple(each.name, each.sent_tensors, each.sent_bytes, each.received_tensors, each.received_bytes));
  }
  return out;
}

}  // namespace

void add_pipes(nb::module_& module) {
  nb::class_<python_message>(module, "_PipeMessage")
      .def_prop_ro("metadata", [](const python_message& self) { return bytes_of(self.target->metadata()); })
      .def_prop_ro("payloads",
                   [](const python_message& self) {
                     nb::list out;
                     for (const auto& each : self.target->payloads()) {
                       out.append(nb::bytes(reinterpret_cast<const char*>(each.bytes.data()), each.bytes.size()));
                     }
                     return out;
                   })
      .def_prop_ro("tensors",
                   [](const python_message& self) {
                     nb::list out;
                     for (const auto& each : self.target->tensors()) {
                       out.append(nb::make_tuple(each.length, bytes_of(each.metadata), std::string(each.device)));
                     }
                     return out;
                   })
      .def("receive", &receive_message, "into"_a.none(), "streams"_a, "timeout"_a.none(), "finish"_a);
  nb::class_<python_pipe>(module, "_Pipe")
      .def("send", &send, "metadata"_a, "payloads"_a, "tensors"_a, "facts"_a, "streams"_a, "timeout"_a.none())
      .def("next", &next, "timeout"_a.none(), "finish"_a)
      .def("receive", &receive, "into"_a.none(), "streams"_a, "timeout"_a.none(), "finish"_a)
      .def("explain", &explain)
      .def("stats", &stats)
      .def("close", [](const python_pipe& self) {
        const without_gil unlocked;
        self.target->close();
      });
  nb::class_<python_listener>(module, "_PipeListener")
      .def_prop_ro("url", [](const python_listener& self) { return self.target->url(); })
      .def("accept", &accept, "timeout"_a.none(), "finish"_a)
      .def("close", [](python_listener& self) {
        const without_gil unlocked;
        *self.target = pipe_listener();
      });
  module.def("_pipe_listen", &listen, "url"_a, "channels"_a, "secret"_a);
  module.def("_pipe_connect", &connect, "url"_a, "channels"_a, "secret"_a);
}

}  // namespace penstock::python
