// The two ends of a pipe, here in two threads, normally in two processes. One sends a message with tensors; the other allocates memory and
// receives them.
#include <penstock/engine.hpp>
#include <penstock/pipe.hpp>

#include <cstddef>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

int fail(const penstock::status& error) {
  std::cerr << error.message() << '\n';
  return 1;
}

// The work of the other process: connects, and sends two tensors. They must not change until the send has ended.
int send_weights(const penstock::engine& engine, const std::string& url) {
  const std::vector<float> weights(1'000'000, 0.5F);
  const std::vector<float> bias(1'000, 0.25F);
  auto context = penstock::pipe_context::create(engine);
  if (!context) return fail(context.error());
  auto pipe = context->connect(url);
  if (!pipe) return fail(pipe.error());
  penstock::outgoing_message message;
  message.metadata = "step 3";
  message.tensors = {{weights.data(), weights.size() * sizeof(float), "weights"}, {bias.data(), bias.size() * sizeof(float), "bias"}};
  const auto sent = pipe->send(message).wait();
  return sent.ok() ? 0 : fail(sent.error);
}

int receive_weights(const penstock::pipe_listener& listener) {
  penstock::pipe pipe;
  if (const auto accepted = listener.accept(pipe).wait(); !accepted.ok()) return fail(accepted.error);
  penstock::incoming_message message;
  if (const auto come = pipe.next(message).wait(); !come.ok()) return fail(come.error);

  // Lengths and metadata have arrived. Allocate memory for the tensors, here on the host; device memory works as well.
  std::vector<std::vector<std::byte>> room;
  std::vector<penstock::incoming_target> targets;
  for (const auto& tensor : message.tensors()) room.emplace_back(tensor.length);
  for (auto& each : room) targets.push_back({each.data(), each.size()});
  const auto received = message.receive(targets).wait();
  if (!received.ok()) return fail(received.error);
  std::cout << message.metadata() << ": " << received.bytes_done << " bytes\n";
  for (const auto& tensor : message.tensors()) std::cout << "  " << tensor.metadata << ": " << tensor.length << " bytes\n";

  // Print the channels that carried the tensors.
  for (const auto& each : pipe.stats()) std::cout << each.received_tensors << " tensors by channel " << each.name << '\n';
  return 0;
}

}  // namespace

int main() {
  auto engine = penstock::engine::create();
  if (!engine) return fail(engine.error());
  auto context = penstock::pipe_context::create(*engine);
  if (!context) return fail(context.error());
  auto listener = context->listen("unix:");  // or "unix:@trainer", or tcp://host:port
  if (!listener) return fail(listener.error());

  int sent = 1;
  std::thread other([&] { sent = send_weights(*engine, listener->url()); });
  const int received = receive_weights(*listener);
  if (received != 0) listener = penstock::pipe_listener();  // closes the listener, so that a pending connect fails
  other.join();
  return received != 0 ? received : sent;
}
