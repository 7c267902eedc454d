// A fabric of UCX's over tcp, any call of which can be made to fail or to hang, and which can pretend to be one with RDMA that knows memory
// of GPUs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sys/fabric.hpp"

namespace penstock::testing {

class fabric_doors final : public sys::fabrics, public std::enable_shared_from_this<fabric_doors> {
 public:
  // The nth call from now on fails, and so many in all.
  void fail(std::uint64_t nth, std::uint64_t times) {
    times_ = times;
    nth_ = calls_ + nth;
  }
  [[nodiscard]] std::uint64_t calls() const { return calls_; }
  // What is sent from now on never leaves.
  std::atomic<bool> hangs{false};
  std::atomic<int> held{0};  // pieces that were to be sent and hang, so far
  // GPUs' memory is taken for what it is: that of a device in disguise.
  std::atomic<bool> knows_cuda{false};
  std::atomic<std::uint64_t> of_cuda{0};  // buffers of GPUs' memory that were sent or received
  std::atomic<int> lines{0};              // that were made
  status missing;                         // why there is no fabric
  status no_lines;                        // why none can be made

  [[nodiscard]] std::vector<sys::fabric_options> opened() {
    const std::lock_guard guard(lock_);
    return opened_;
  }

  status usable() override {
    if (!missing.ok()) return missing;
    return fails() ? error() : inner_->usable();
  }
  result<std::shared_ptr<sys::fabric>> open(const sys::fabric_options& options) override {
    {
      const std::lock_guard guard(lock_);
      opened_.push_back(options);
    }
    if (fails()) return error();
    auto made = inner_->open({"lo", false, options.on_thread});
    if (!made) return made.error();
    return std::shared_ptr<sys::fabric>(std::make_shared<door>(shared_from_this(), *std::move(made)));
  }

 private:
  // What was to be sent and hangs.
  struct held_sends {
    void tell(const status& outcome) {
      for (const auto& each : take()) each(outcome);
    }
    std::vector<sys::fabric_line::told> take() {
      const std::lock_guard guard(lock);
      return std::exchange(all, {});
    }
    std::mutex lock;  // guards all
    std::vector<sys::fabric_line::told> all;
  };

  class line final : public sys::fabric_line {
   public:
    line(std::shared_ptr<fabric_doors> owner, std::shared_ptr<sys::fabric> by, std::unique_ptr<sys::fabric_line> inner, told ended,
         std::shared_ptr<held_sends> held)
        : owner_(std::move(owner)), by_(std::move(by)), inner_(std::move(inner)), ended_(std::move(ended)), held_(std::move(held)) {}
    ~line() override { end({errc::closed, "the line was closed"}); }
    [[nodiscard]] const std::vector<std::byte>& address() const noexcept override { return inner_->address(); }
    void connect(std::vector<std::byte> address) override {
      if (!fails()) inner_->connect(std::move(address));
    }
    void send(std::uint64_t tag, const sys::fabric_buffer& from, told done) override {
      if (owner_->hangs) {
        ++owner_->held;
        const std::lock_guard guard(held_->lock);
        held_->all.push_back(std::move(done));
        return;
      }
      (void)fails();
      inner_->send(tag, as_host(from), std::move(done));
    }
    std::uint64_t receive(std::uint64_t tag, const sys::fabric_buffer& to, told done) override {
      (void)fails();
      return inner_->receive(tag, as_host(to), std::move(done));
    }
    void cancel(std::uint64_t receive) override { inner_->cancel(receive); }
    void limit(std::chrono::milliseconds time) override { inner_->limit(time); }
    void end(const status& why) override {
      inner_->end(why);
      auto held = held_->take();
      if (held.empty()) return;
      // On the fabric's thread, like all that ends.
      bytes_.resize(1);
      inner_->receive(0, {bytes_.data(), 1}, [held = std::move(held)](const status& outcome) {
        for (const auto& each : held) each(outcome);
      });
    }

   private:
    // The line ends as though the fabric had found that the other end is gone. Once.
    bool fails() {
      if (!owner_->fails()) return false;
      if (std::exchange(failed_, true)) return true;
      bytes_.resize(1);
      inner_->receive(1, {bytes_.data(), 1}, ended_);
      inner_->end(error());
      return true;
    }
    sys::fabric_buffer as_host(sys::fabric_buffer of) {
      owner_->of_cuda += of.of_cuda ? 1 : 0;
      of.of_cuda = false;
      return of;
    }

    const std::shared_ptr<fabric_doors> owner_;
    const std::shared_ptr<sys::fabric> by_;  // a line of UCX keeps its fabric, too
    const std::unique_ptr<sys::fabric_line> inner_;
    const told ended_;
    bool failed_ = false;
    std::vector<std::byte> bytes_;
    const std::shared_ptr<held_sends> held_;
  };

  class door final : public sys::fabric, public std::enable_shared_from_this<door> {
   public:
    door(std::shared_ptr<fabric_doors> owner, std::shared_ptr<sys::fabric> inner) : owner_(std::move(owner)), inner_(std::move(inner)) {}
    [[nodiscard]] bool knows_cuda() const noexcept override { return owner_->knows_cuda; }
    result<std::unique_ptr<sys::fabric_line>> make_line(sys::fabric_line::told ended) override {
      if (owner_->fails()) return error();
      if (!owner_->no_lines.ok()) return owner_->no_lines;
      auto held = std::make_shared<held_sends>();
      auto made = inner_->make_line([ended, held](const status& why) {
        held->tell(why);
        ended(why);
      });
      if (!made) return made.error();
      ++owner_->lines;
      return std::unique_ptr<sys::fabric_line>(
          std::make_unique<line>(owner_, shared_from_this(), *std::move(made), std::move(ended), std::move(held)));
    }

   private:
    const std::shared_ptr<fabric_doors> owner_;
    const std::shared_ptr<sys::fabric> inner_;
  };

  static status error() { return {errc::io, "injected"}; }
  bool fails() {
    const auto call = ++calls_;
    return call >= nth_ && call < nth_ + times_;
  }

  const std::shared_ptr<sys::fabrics> inner_ = sys::ucx_fabrics();
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> nth_{~std::uint64_t{0} / 2};
  std::atomic<std::uint64_t> times_{0};
  std::mutex lock_;  // guards opened_
  std::vector<sys::fabric_options> opened_;
};

}  // namespace penstock::testing
