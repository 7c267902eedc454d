// One end of a pipe: what is to be sent and received, and what the ends have told each other. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/no_memory.hpp"
#include "channel/connection.hpp"
#include "channel/fabrics.hpp"
#include "channel/proof.hpp"
#include "channel/wire.hpp"
#include "core/runtime.hpp"
#include "penstock/pipe.hpp"
#include "pipe/inbox.hpp"
#include "pipe/operations.hpp"
#include "pipe/staging.hpp"
#include "pipe/stripes.hpp"

namespace penstock::pipes {

// What the pipes of a context share.
struct pipe_shared {
  std::shared_ptr<core::runtime> runtime;
  pipe_staging* staging = nullptr;  // of the runtime
  std::shared_ptr<sys::peer> door;
  std::shared_ptr<channel::reactor> reactor;
  std::vector<const channel::channel*> channels;  // that may be used, best first
  std::string secret{};                           // of tcp; empty: none
  unsigned connections = 1;                       // of a pipe, at most; of tcp
  std::chrono::milliseconds close_within{};       // pipe_options
  std::chrono::milliseconds prove_within{};
  std::shared_ptr<channel::reactors> more_reactors{};  // for further ones
  std::shared_ptr<channel::fabrics> fabrics{};
};

// Told once of a pipe whether its other end has proved to know the secret. Without the pipe's lock.
using proof_listener = std::function<void(const std::shared_ptr<session>&, bool)>;

// A message that has come, and who has it. Its facts do not change.
class arrived_message {
 public:
  channel::announcement facts;
  std::vector<std::byte> body;
  std::uint64_t number = 0;
  std::shared_ptr<session> pipe;  // once the user has it

  // With the pipe's lock.
  bool received = false;  // receive() was called, or never will be
  bool pushed = false;    // its tensors go to the targets that were posted
  status withdrawn;       // by the sender, who says why
  status not_received;    // why it could not be when that was tried

  [[nodiscard]] bool has_tensors_elsewhere() const;
  // Payloads and tensors in line, one behind the other.
  [[nodiscard]] std::span<const std::byte> contents() const { return std::span(body).subspan(facts.bytes_before_payloads); }
  // Of all its tensors, one behind the other; empty where they are elsewhere.
  [[nodiscard]] std::span<const std::byte> in_line_bytes() const;
};

// Where a part of a message lies. kind, index: name it in errors, which are bad_memory.
result<staging::place> place_of_part(core::runtime& with, const void* memory, std::uint64_t length, std::string_view kind,
                                     std::size_t index);
// Of such a name.
inline bool is_of_host_device(std::string_view device) noexcept { return device.starts_with("host:"); }

class session final : public channel::frame_user,
                      public operation_owner,
                      public stripe_owner,
                      public under_way_teller,
                      public std::enable_shared_from_this<session> {
 public:
  // over: a socket that is connected or connecting. local: a unix socket.
  // url: that it leads to, of who connects.
  static result<std::shared_ptr<session>> make(const pipe_shared& with, sys::owned_descriptor over, const std::string& url, bool local,
                                               bool connecting, proof_listener when_proven = {});
  session(const pipe_shared& with, const std::string& url, bool local);
  ~session() override;

  [[nodiscard]] const std::shared_ptr<core::runtime>& runtime() const noexcept { return with_.runtime; }
  [[nodiscard]] bool forked() const noexcept { return with_.runtime->forked(); }
  // The caller's reference.
  core::operation* send(const outgoing_message& message, const pipe_operation_options& options, io_callback callback);
  // posted: where the tensors may go, or null. Where they do (arrived_message::pushed), it ends when they are there.
  core::operation* next(incoming_message& into, const pipe_operation_options& options, io_callback callback,
                        std::unique_ptr<posting> posted = nullptr);
  // Null: they cannot be pushed.
  std::unique_ptr<posting> prepare_posting(const std::vector<incoming_target>& targets) noexcept;
  static core::operation* receive(const std::shared_ptr<arrived_message>& message, std::vector<incoming_target> targets,
                                  const pipe_operation_options& options, io_callback callback);
  void dropped(arrived_message& message) noexcept;
  // There was no room for its tensors, which the sender hears when it is dropped.
  void no_room_for(arrived_message& message, const status& why) noexcept;
  result<pipe_plan> explain(deadline_clock::time_point until);
  std::vector<channel_stats> stats();
  // What is being sent, and receives whose tensors are on their way or may be pushed.
  void add_under_way(std::vector<request_info>& to) override;
  void close() noexcept;
  // Closes, at once, a connection that nobody was given. Without a lock.
  void turn_away() noexcept { connection_->abandon(); }
  // The other end, of which the secret is asked, has said something of what it should. Any thread.
  [[nodiscard]] bool has_begun_to_prove() const noexcept { return begins_to_prove_.load(); }
  [[nodiscard]] bool has_something_to_say() const noexcept { return connection_->has_something(); }
  // At what was pushed into memory of this end, when the other had gone.
  void look_at_pushes() noexcept;

  void stop(send_operation& op) noexcept override;
  void stop(next_operation& op) noexcept override;
  void stop(receive_operation& op) noexcept override;
  void may_begin(send_operation& op, const status& outcome) noexcept override;
  void may_begin(receive_operation& op, const status& outcome) noexcept override;
  void go_on(send_operation& op) noexcept override;
  void go_on(receive_operation& op) noexcept override;
  void copied(sent_piece& piece, const status& outcome) noexcept override;
  void copied(received_piece& piece, const status& outcome) noexcept override;
  void left(sent_by_line& piece, const status& outcome) noexcept override;
  void come(received_by_line& piece, const status& outcome) noexcept override;
  status read(const receive_operation& op, const read_part& part) override;
  void begin_polling() noexcept override { connection_->begin_polling(); }
  bool poll() noexcept override;
  void end_polling() noexcept override { connection_->end_polling(); }
  void all_ended(receive_operation& op) noexcept override;

  result<std::span<std::byte>> begins(const channel::frame_head& head) override;
  status arrived(const channel::frame_head& head) override;
  void lost(const status& why) noexcept override;

  result<std::span<std::byte>> piece_begins(const channel::frame_head& head) override;
  status piece_arrived(const channel::frame_head& head) override;
  void stripe_lost(const status& why) noexcept override;
  void say_of_stripes(std::uint32_t code, std::vector<std::byte> body) override;

 private:
  // What a step leaves to be done without the lock.
  struct endings {
    std::vector<std::pair<pipe_operation*, io_result>> told;             // operations that have ended
    std::vector<std::pair<receive_operation*, std::uint64_t>> of_parts;  // how many parts of these have
  };

  template <class Step>
  void with_lock(Step step) noexcept;
  void say(channel::frame_kind kind, std::uint64_t message, std::vector<std::byte> body = {}, std::uint64_t part = 0,
           std::uint32_t code = 0);
  void say(channel::frame_kind kind, std::uint64_t message, const status& why, std::uint64_t part = 0);
  void enqueue(channel::outgoing_frame frame);

  static status pipe_closed();
  status locate(send_operation& op);
  void share_parts(channel::tensor_facts& told, std::size_t tensor, std::vector<exported_part>& exports, device::session& session,
                   const void* memory, bool& told_why);

  // --- with the lock
  [[nodiscard]] status over() const;
  static void conclude(pipe_operation& op, io_result outcome, endings& ended);
  void end_all(const status& why, endings& ended);
  // Sending.
  void announce_what_may();
  [[nodiscard]] bool may_announce(const send_operation& op) const;
  void announce(send_operation& op);
  std::shared_ptr<void> pass_descriptors(std::vector<channel::tensor_facts>& of, std::vector<exported_part>& exports);
  status wanted(const channel::frame_head& head, endings& ended);
  void send_piece(const send_operation& op, const sent_piece& asked, std::span<const std::byte> content, staging::landing::lease room);
  void say_unused(std::uint32_t wanted);
  void start_copies(send_operation& op, endings& ended);
  status taken(const channel::frame_head& head, endings& ended);
  void left(std::uint64_t number, endings& ended);
  void end(send_operation& op, io_result outcome, endings& ended);
  // Pushing, at the end that sends.
  status posted(const channel::frame_head& head);
  [[nodiscard]] std::shared_ptr<const push_targets> targets_for(const send_operation& op) const;
  [[nodiscard]] channel::permit permit_of(const send_operation& op) const noexcept {
    return connection_->permit_of_other(op.pushes_to->slot, op.pushes_to->turn);
  }
  bool begin_push(send_operation& op, std::uint64_t index);
  void push_ended(send_operation& op, endings& ended);
  // At the end that receives.
  [[nodiscard]] channel::permit permit_of(const next_operation& op) const noexcept {
    return connection_->own_permit(op.permit->slot, op.permit->turn);
  }
  void post(next_operation& op);
  bool take_back(next_operation& op);
  bool take_back_from(const next_operation& op);
  status meets_posting(const channel::frame_head& head, arrived_message& message);
  status pushed(const channel::frame_head& head, endings& ended);
  void push_ended(next_operation& op, status outcome, endings& ended);
  void end_pushes(const status& why, endings& ended);
  // Tensors have gone or come: counted for this pipe and for the engine.
  void count(std::string_view channel, const channel_stats& more);
  void note_pushed(const channel::channel& by, const next_operation& op);
  // Receiving.
  status announced(const channel::frame_head& head, endings& ended);
  void offer_descriptors(const channel::announcement& facts);
  void deliver(endings& ended);
  void withdrawn(const channel::frame_head& head, endings& ended);
  void ask(receive_operation& op, endings& ended);
  void ask_all(endings& ended);
  result<bool> make_room(receive_operation& op, received_piece& piece);
  status tensor_arrived(const channel::frame_head& head, endings& ended);
  void has_come(receive_operation& op, std::list<received_piece>::iterator piece, endings& ended);
  result<std::span<std::byte>> room_for_piece(const channel::frame_head& head);
  void striped_arrived(const channel::frame_head& head, endings& ended);
  void divert(std::uint64_t message);
  [[nodiscard]] std::uint64_t piece_bytes(const channel::channel& by, std::uint64_t length) const noexcept;
  [[nodiscard]] std::size_t most_pieces() const noexcept;
  status answered(std::uint32_t wanted, endings& ended);
  void abandon(receive_operation& op, const status& why, endings& ended);
  void end(receive_operation& op, io_result outcome, endings& ended);
  // Over lines.
  bool ask_by_line(receive_operation& op, std::size_t tensor, endings& ended);
  void ask_those_begun(endings& ended);
  static void arrived(receive_operation& op, const received_by_line& piece, endings& ended);
  static void abandon_on_lines(receive_operation& op);
  status line_answered(const channel::frame_head& head, endings& ended);
  status line_over(const channel::frame_head& head, endings& ended);
  status wanted_by_line(const channel::frame_head& head, endings& ended);
  status answered_by_line(const channel::frame_head& head, endings& ended);
  [[nodiscard]] const channel::channel* sends_instead(bool from_device, bool to_device) const;
  // Knowing each other.
  status greeted(std::span<const std::byte> body);
  status challenged(std::span<const std::byte> body);
  status proven(std::span<const std::byte> body);
  status refuse(std::string_view to_other, std::string here);
  status reached(std::span<const std::byte> body);
  [[nodiscard]] const channel::channel* known_way(const std::string& from, const staging::place& to);
  void remember_way(const std::string& from, const staging::place& to, const channel::channel* by);
  void note_route(const std::string& from, const std::string& to, std::vector<channel_choice> channels);

  // --- without it
  status told_of_stripes(const channel::frame_head& head);
  status line_offered(const channel::frame_head& head);
  result<std::shared_ptr<sys::fabric>> fabric_for(const staging::place& where);
  std::unique_ptr<sys::fabric_line> make_line(sys::fabric& by, std::uint32_t number, bool receives, status& problem);
  result<std::shared_ptr<pipe_line>> line_from(const std::string& device, const staging::place& to);
  void line_ended(std::uint32_t number, bool receives, const status& why) noexcept;
  void end_lines() noexcept;
  status inbox_offered(bool to_host_device);
  void offer_inbox(const receive_operation& op);
  [[nodiscard]] std::chrono::milliseconds closes_within() noexcept;
  void let_go_of_memory() noexcept;
  void say_hello(sys::owned_descriptor passed, std::uint64_t ring_bytes);
  void agree_on_ring(std::uint64_t bytes);
  status start(const std::shared_ptr<session>& self, sys::owned_descriptor over, bool connecting);
  status prepare(receive_operation& op);
  // How a tensor comes.
  struct choice {
    const channel::channel* by = nullptr;
    const void* source = nullptr;             // where a device copies from, where it is nowhere mapped
    std::vector<pipe_imports::held> imports;  // of its parts
    std::shared_ptr<pipe_line> line;          // over which it comes
  };
  // Why not, or nothing once source, imports or line are set.
  std::optional<std::string> reach(choice& chosen, const channel::tensor_facts& from, const staging::place& to);
  result<choice> choose(const channel::tensor_facts& from, const staging::place& to);
  bool prepare_push(send_operation& op) noexcept;
  void pin_permits(device::session& session, bool emulated) noexcept;
  void unpin_permits() noexcept;
  bool ends_of_pushes() noexcept;
  void share_all(send_operation& op);
  bool watches_process() noexcept;
  void begin_receive(receive_operation& op) noexcept;
  void add_engine_part(receive_operation& op, std::size_t tensor);
  void begin_engine_parts(receive_operation& op) noexcept;
  void begin_parts(receive_operation& op) noexcept;

  const pipe_shared with_;
  const bool local_;
  std::shared_ptr<channel::connection> connection_;
  bool connects_ = false;
  std::optional<channel::proof> proof_;  // that is asked for; of who reads
  proof_listener when_proven_;           // until it was told; likewise
  bool is_proven_ = false;               // likewise
  std::atomic<bool> begins_to_prove_{false};
  std::shared_ptr<pipe_stripes> stripes_;  // null: it has its connection alone; does not change once it has started
  sys::shared_region offered_;             // until the other end has answered
  pipe_imports imports_;
  std::atomic<bool> inbox_tried_{false};
  std::atomic<const channel::channel*> pushes_by_{nullptr};  // to this end; null: nothing is
  std::array<std::once_flag, 2> permits_tried_;              // for devices, and for the host device
  std::array<std::atomic<device::session*>, 2> pinned_permits_{};
  std::atomic<std::size_t> pushes_here_{0};  // messages that are being pushed to this end
  std::once_flag process_tried_;
  sys::owned_descriptor process_;  // the other end's, watched
  std::atomic<bool> shares_;       // handles of device memory are of use to the other end, as far as is known

  std::mutex lock_;                // guards what follows
  std::condition_variable known_;  // ready_, or over
  bool greeted_ = false;
  bool ready_ = false;
  bool closed_ = false;
  status lost_;
  status stripe_lost_;    // before the rest was
  bool cut_off_ = false;  // what comes goes nowhere
  channel::identity peer_;
  std::string peer_name_;                                            // until it is known, the URL of who connects
  std::mutex making_lines_;                                          // before lock_: one line is made at a time
  std::vector<std::shared_ptr<pipe_line>> lines_here_;               // by which this end receives, by number
  std::map<std::uint64_t, std::shared_ptr<pipe_line>> lines_there_;  // by which the other end does, by its number
  std::vector<channel::reached_channel> receiving_;                  // like the next, does not change once ready_
  std::vector<channel::reached_channel> sending_;
  std::map<std::pair<std::string, std::string>, std::vector<channel_choice>> routes_;
  // From a device of the other end, or its host, over a link of this one, or to its host.
  std::map<std::pair<std::string, const staging::link*>, const channel::channel*> ways_;

  std::uint64_t next_number_ = 1;
  std::uint64_t announced_so_far_ = 0;
  std::deque<send_operation*> queued_;
  std::map<std::uint64_t, send_operation*> announced_;
  std::uint32_t messages_ahead_ = 0;  // announced, and the other end's user has not taken them
  std::uint64_t bytes_ahead_ = 0;
  std::deque<std::atomic<std::uint64_t>> guards_;  // which the other end may read to see that a message is still what it was
  std::vector<std::atomic<std::uint64_t>*> free_guards_;

  std::vector<std::byte> body_;  // of the frame that arrives, where it goes to no tensor
  std::deque<std::shared_ptr<arrived_message>> come_;
  std::uint32_t untaken_messages_ = 0;
  std::uint64_t untaken_bytes_ = 0;
  std::uint64_t come_so_far_ = 0;
  std::deque<next_operation*> waiting_;
  std::map<std::uint64_t, receive_operation*> receiving_now_;
  std::map<std::uint64_t, std::weak_ptr<arrived_message>> not_received_;
  // Allocations whose descriptors the other end has had, the latest last.
  std::set<std::pair<std::string, std::uint64_t>> passed_;
  std::deque<std::pair<std::string, std::uint64_t>> passed_in_order_;
  // Descriptors on their way whose frames have not left.
  const std::shared_ptr<std::atomic<std::uint32_t>> passed_ahead_ = std::make_shared<std::atomic<std::uint32_t>>(0);
  std::shared_ptr<pipe_inbox> inbox_;      // of this end
  std::shared_ptr<pinned_region> outbox_;  // the other end's inbox
  bool want_slots_ = false;                // some operations found none free

  std::map<std::uint64_t, std::shared_ptr<const push_targets>> postings_;  // of the other end, by which message it will be
  std::vector<std::uint32_t> free_permits_;                                // of this one
  std::array<std::uint32_t, channel::permit::count> permit_turns_{};
  bool pushes_ = false;                        // copies have been submitted, and not been looked after
  std::vector<next_operation*> being_pushed_;  // into whose targets the other end may be writing
  std::atomic<bool> pushes_lost_{false};       // those will end without its telling
  core::timed* push_watch_ = nullptr;          // looks whether they have
  bool watches_pushes_ = false;                // and will again

  std::map<std::string, channel_stats, std::less<>> stats_;
};

// Takes a step with the lock, then sends what it has queued and tells those whom it has ended. A step that runs out of memory ends the
// pipe: the ends would no longer agree.
template <class Step>
void session::with_lock(Step step) noexcept {
  // Once the lock is let go, the operation that this is about may end on another thread, whose caller then drops the pipe.
  const auto self = weak_from_this().lock();
  endings ended;
  bool copies = false;
  {
    const std::lock_guard guard(lock_);
    or_without_memory(
        [&] {
          step(ended);
          return true;
        },
        [&] {
          end_all(no_memory(), ended);
          return false;
        });
    copies = std::exchange(pushes_, false);
  }
  if (copies) (void)with_.runtime->feeders().pump();  // ahead of what tells of them
  connection_->flush();
  if (copies) with_.runtime->feeders().attend();
  if (stripes_ != nullptr) stripes_->go_on();
  for (auto& [op, outcome] : ended.told) op->tell_end(std::move(outcome));
  for (auto& [op, count] : ended.of_parts) op->parts_ended(count);
}

}  // namespace penstock::pipes
