// Cancels one read, and limits another by a deadline. Both report exactly how many bytes arrived, and the memory is yours again once they
// have ended.
#include <penstock/penstock.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>

int main(int argc, char** argv) {
  using namespace std::chrono_literals;
  if (argc != 2) {
    std::cerr << "usage: cancel_and_deadline FILE\n";
    return 2;
  }
  const auto fail = [](const penstock::status& error) {
    std::cerr << error.message() << '\n';
    return 1;
  };

  auto engine = penstock::engine::create();
  if (!engine) return fail(engine.error());
  auto file = engine->open(argv[1]);
  if (!file) return fail(file.error());
  auto bytes = file->size();
  if (!bytes) return fail(bytes.error());
  auto buffer = engine->allocate(engine->devices().front().name, std::max<std::size_t>(*bytes, 1));
  if (!buffer) return fail(buffer.error());

  const auto tell = [&](const char* what, const penstock::io_result& ended) {
    std::cout << what << ": " << ended.bytes_done << " of " << *bytes << " bytes, " << (ended.ok() ? "in time" : ended.error.message())
              << '\n';
  };

  // If the read has ended already, cancelling it has no effect.
  auto reading = file->read_async(buffer->data(), *bytes, 0);
  reading.cancel();
  const auto cancelled = reading.wait();
  tell("cancelled", cancelled);
  if (!cancelled.ok() && cancelled.error.code() != penstock::errc::cancelled) return fail(cancelled.error);

  // With a deadline, no new piece starts after a quarter of a second.
  const auto limited = file->read(buffer->data(), *bytes, 0, {.deadline = penstock::deadline_clock::now() + 250ms});
  tell("a quarter of a second", limited);
  if (!limited.ok() && limited.error.code() != penstock::errc::timed_out) return fail(limited.error);

  // A limited wait is different: the read goes on.
  auto patient = file->read_async(buffer->data(), *bytes, 0);
  while (!patient.wait_for(10ms)) std::cout << "still reading\n";
  tell("waited for", patient.wait());
  return 0;
}
