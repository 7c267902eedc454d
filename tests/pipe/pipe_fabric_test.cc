// Pipes over a fabric: the channel used in each case, and the fate of messages when the fabric fails. Real bytes over UCX's tcp.
#include <filesystem>
#include <fstream>
#include <thread>

#include "contract/contract_fixture.hpp"
#include "penstock/quiesce.hpp"
#include "pipe/fabric_doors.hpp"
#include "pipe/pipe_fixture.hpp"
#include "pipe/server.hpp"
#include "support/open_descriptors.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

// The host device as a GPU at a PCI address.
class disguised_driver final : public device::driver {
 public:
  [[nodiscard]] std::string_view kind() const override { return "cuda"; }
  result<int> count() override { return inner_->count(); }
  result<device::device_facts> describe(int ordinal) override {
    auto facts = inner_->describe(ordinal);
    if (facts) facts->pci_bus_id = "0000:3b:00.0";
    return facts;
  }
  result<device::memory_info> classify(const void* memory) override { return inner_->classify(memory); }
  bool is_mapped(const void* memory) override { return inner_->is_mapped(memory); }
  result<device::session*> open(int ordinal, void* context) override { return inner_->open(ordinal, context); }

 private:
  const std::shared_ptr<device::driver> inner_ = device::make_host_driver();
};

core::seams with_disguised_gpu() {
  auto doors = core::real_seams({});
  doors.cuda = std::make_shared<disguised_driver>();
  return doors;
}

// Two ends on a machine of one GPU, with doors of their own.
class pipe_fabric : public ::testing::Test {
 protected:
  using names = std::vector<std::string>;

  void SetUp() override {
    if (const auto problem = sys::ucx_fabrics()->usable(); !problem.ok()) GTEST_SKIP() << problem.message();
  }
  [[nodiscard]] std::string sysfs() const { return (dir_.path() / "sys").string(); }
  void add_network_card(const std::string& name, const std::string& address, const std::string& state) const {
    namespace fs = std::filesystem;
    const auto folder = fs::path(sysfs()) / "devices/pci0000:3a/0000:3a:01.0" / address;
    fs::create_directories(folder / "infiniband" / name / "ports/1");
    std::ofstream(folder / "infiniband" / name / "ports/1/state") << state << "\n";
    fs::create_directory_symlink(folder, folder / "infiniband" / name / "device");
    fs::create_directories(fs::path(sysfs()) / "class/infiniband");
    fs::create_directory_symlink(folder / "infiniband" / name, fs::path(sysfs()) / "class/infiniband" / name);
  }
  void add_module() const { std::filesystem::create_directories(std::filesystem::path(sysfs()) / "module/nvidia_peermem"); }
  void add_open_driver() const {
    std::filesystem::create_directories(dir_.path() / "proc/driver/nvidia");
    std::ofstream(dir_.path() / "proc/driver/nvidia/version") << "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n";
  }

  void connect(const names& channels, const std::string& url = "tcp://127.0.0.1:0") {
    auto server = pipes::server::make(house_.engine().core(), sys::linux_peer(), {channels}, here_fabrics_, sysfs());
    auto client = pipes::server::make(house_.engine().core(), sys::linux_peer(), {channels}, there_fabrics_, sysfs());
    ASSERT_TRUE(server.ok() && client.ok());
    here_context_.emplace(*std::move(server));
    there_context_.emplace(*std::move(client));
    auto listener = here_context_->listen(url);
    ASSERT_TRUE(listener.ok()) << listener.error().message();
    listener_ = *std::move(listener);
    auto accepting = listener_.accept(here_);
    auto made = there_context_->connect(listener_.url());
    ASSERT_TRUE(made.ok());
    there_ = *std::move(made);
    ASSERT_TRUE(accepting.wait().ok());
    counted_.clear();
  }
  // By which channel it came; the error's text where it did not.
  std::string send(memory_place from, memory_place to, std::size_t size = 9 * mib + 5) {
    const auto content = some_bytes(size, 5);
    guarded_memory source(house_, from, size, 0);
    source.fill(content);
    guarded_memory target(house_, to, size, 0);
    auto sent = there_.send({"", {}, {{source.data(), size}}});
    incoming_message come;
    const auto next = here_.next(come).wait();
    if (!next.ok()) return std::string(next.error.message());
    const auto got = come.receive({{target.data(), size}}).wait();
    come = {};
    const auto left = sent.wait();
    EXPECT_EQ(got.ok(), left.ok()) << told(got.error) << "; " << told(left.error);
    if (!got.ok()) return std::string(got.error.message());
    target.expect(content);
    for (const auto& each : here_.stats()) {
      if (each.received_bytes > std::exchange(counted_[each.name], each.received_bytes)) return each.name;
    }
    return "none";
  }
  [[nodiscard]] std::string refusal(const std::string& channel) const {
    const auto plan = here_.explain();
    if (!plan) return std::string(plan.error().message());
    for (const auto& each : plan->receiving) {
      if (each.name == channel) return each.refusal;
    }
    return "there is none";
  }

  temp_dir dir_;
  open_house house_{{}, with_disguised_gpu()};
  std::shared_ptr<fabric_doors> here_fabrics_ = std::make_shared<fabric_doors>();
  std::shared_ptr<fabric_doors> there_fabrics_ = std::make_shared<fabric_doors>();
  std::optional<pipe_context> here_context_;
  std::optional<pipe_context> there_context_;
  pipe_listener listener_;
  penstock::pipe here_;
  penstock::pipe there_;
  std::map<std::string, std::uint64_t> counted_;
};

constexpr auto host = memory_place::pageable;
constexpr auto gpu = memory_place::device;

TEST_F(pipe_fabric, without_rdma_it_is_neither_used_nor_opened_unless_it_is_named) {
  connect({});
  EXPECT_EQ(refusal("ucx"), "there is no RDMA device");
  EXPECT_EQ(refusal("cuda_gdr"), "there is no RDMA device");
  EXPECT_EQ(send(host, host), "mpt");
  EXPECT_EQ(send(gpu, gpu), "mpt");
  EXPECT_TRUE(here_fabrics_->opened().empty());
  add_network_card("mlx5_0", "0000:3c:00.0", "1: DOWN");
  connect({});
  EXPECT_EQ(refusal("ucx"), "no RDMA port is active: mlx5_0 port 1 is DOWN");
  EXPECT_TRUE(here_fabrics_->opened().empty());
  connect({"ucx", "basic"});
  EXPECT_EQ(refusal("ucx"), "");
  EXPECT_EQ(send(host, host), "ucx");
  EXPECT_FALSE(here_fabrics_->opened().front().only_rdma);
  EXPECT_EQ(here_fabrics_->opened().front().devices, "lo") << "without a secret nobody else is to reach it";
}

TEST_F(pipe_fabric, with_rdma_it_comes_first_between_hosts_and_goes_over_nothing_else) {
  add_network_card("mlx5_0", "0000:3c:00.0", "4: ACTIVE");
  connect({});
  EXPECT_EQ(refusal("ucx"), "");
  EXPECT_NE(refusal("cuda_gdr").find("nvidia_peermem"), std::string::npos) << refusal("cuda_gdr");
  EXPECT_EQ(send(host, host), "ucx");
  EXPECT_EQ(send(gpu, host), "mpt");
  for (const auto& doors : {here_fabrics_, there_fabrics_}) {
    ASSERT_EQ(doors->opened().size(), 1U);
    EXPECT_EQ(doors->opened().front().devices, "");
    EXPECT_TRUE(doors->opened().front().only_rdma);
  }
  connect({}, "unix:");
  EXPECT_EQ(refusal("ucx"), "both ends are on this host");
  EXPECT_NE(send(host, host), "ucx");
}

TEST_F(pipe_fabric, quiesce_names_a_pipe_until_it_is_closed_and_then_ends_its_fabric) {
  const auto ucx_threads = [] {
    int found = 0;
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(each.path() / "comm"), name);
      found += name == "penstock-ucx" ? 1 : 0;
    }
    return found;
  };
  for (int round = 0; round < 2; ++round) {
    connect({"ucx", "basic"});
    EXPECT_EQ(send(host, host), "ucx");
    EXPECT_GT(ucx_threads(), 0);
    const auto refused = quiesce();
    EXPECT_EQ(refused.code(), errc::unsupported);
    EXPECT_NE(refused.message().find("the pipe to " + std::string(listener_.url())), std::string_view::npos) << refused.message();
    here_.close();
    there_.close();
    listener_ = {};
    const auto used = quiesce();
    EXPECT_EQ(used.message(), "quiesce: a closed pipe still uses UCX, which cannot be frozen: release the pipe object first");
    here_ = {};
    there_ = {};
    EXPECT_EQ(quiesce().message(), "");
    EXPECT_EQ(ucx_threads(), 0);
  }
}

// As check does.
TEST_F(pipe_fabric, dma_buf_of_the_open_driver_lets_memory_of_gpus_through_without_a_module) {
  add_network_card("mlx5_0", "0000:3c:00.0", "4: ACTIVE");
  add_open_driver();
  here_fabrics_->knows_cuda = there_fabrics_->knows_cuda = true;
  connect({});
  EXPECT_EQ(refusal("cuda_gdr"), "");
}

TEST_F(pipe_fabric, a_ucx_that_does_not_know_cuda_leaves_memory_of_gpus_to_others) {
  add_network_card("mlx5_0", "0000:3c:00.0", "4: ACTIVE");
  add_module();
  connect({});
  EXPECT_EQ(refusal("cuda_gdr"), "this UCX build does not support CUDA memory");
  EXPECT_EQ(send(gpu, gpu), "mpt");
  connect({"cuda_gdr"});
  EXPECT_NE(send(gpu, gpu).find("does not support CUDA"), std::string::npos);
  connect({"cuda_gdr", "cuda_basic"});
  EXPECT_EQ(send(gpu, gpu), "cuda_basic");
  EXPECT_EQ(there_fabrics_->of_cuda, 0U);
}

// The only way to it on a machine without GPUs: the memory is the host's, and everything above UCX takes it for a GPU's.
TEST_F(pipe_fabric, cards_that_are_equally_near_to_a_gpu_share_its_tensors) {
  add_network_card("mlx5_0", "0000:3c:00.0", "4: ACTIVE");
  add_network_card("mlx5_1", "0000:3d:00.0", "4: ACTIVE");
  add_module();
  here_fabrics_->knows_cuda = true;
  there_fabrics_->knows_cuda = true;
  connect({});
  EXPECT_EQ(send(gpu, gpu), "cuda_gdr");
  ASSERT_EQ(here_fabrics_->opened().size(), 2U);
  EXPECT_EQ(here_fabrics_->opened()[1].devices, "mlx5_0:1,mlx5_1:1");
  EXPECT_EQ(here_fabrics_->opened()[1].rails, 2U);
  EXPECT_EQ(here_fabrics_->opened()[0].rails, 0U) << "host memory: as UCX likes";
}

TEST_F(pipe_fabric, memory_of_a_gpu_goes_by_the_network_card_that_is_nearest_to_it) {
  add_network_card("mlx5_0", "0000:3c:00.0", "1: DOWN");
  add_network_card("mlx5_1", "0000:3d:00.0", "4: ACTIVE");
  add_module();
  here_fabrics_->knows_cuda = true;
  there_fabrics_->knows_cuda = true;
  connect({});
  EXPECT_EQ(refusal("cuda_gdr"), "");
  EXPECT_EQ(send(gpu, gpu), "cuda_gdr");
  ASSERT_EQ(here_fabrics_->opened().size(), 2U);
  EXPECT_EQ(here_fabrics_->opened()[1].devices, "mlx5_1:1");
  EXPECT_EQ(there_fabrics_->opened()[1].devices, "mlx5_1:1");
  EXPECT_EQ(here_fabrics_->of_cuda, 3U);  // pieces
  EXPECT_EQ(there_fabrics_->of_cuda, 3U);
  EXPECT_EQ(send(gpu, host), "cuda_gdr");
  EXPECT_EQ(here_fabrics_->of_cuda, 3U);
  EXPECT_EQ(there_fabrics_->of_cuda, 6U);
  EXPECT_EQ(send(host, gpu), "cuda_gdr");
  EXPECT_EQ(send(host, host), "ucx");
  const auto lines = here_fabrics_->lines.load();
  EXPECT_EQ(send(gpu, gpu), "cuda_gdr");
  EXPECT_EQ(here_fabrics_->lines.load(), lines) << "a line serves all tensors between such memory";
}

TEST_F(pipe_fabric, what_the_other_end_lacks_is_told_as_the_reason) {
  const status missing(errc::unsupported, "UCX is not installed (libucp.so.0: no such file)");
  there_fabrics_->missing = missing;
  connect({"ucx", "basic"});
  EXPECT_EQ(refusal("ucx"), "the peer: UCX is not installed (libucp.so.0: no such file)");
  EXPECT_EQ(send(host, host), "basic");
  here_fabrics_->missing = missing;
  connect({"ucx", "basic"});
  EXPECT_EQ(refusal("ucx"), "UCX is not installed (libucp.so.0: no such file)");
  const auto plan = there_.explain();
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->sending.front().name, "ucx");
  EXPECT_FALSE(plan->sending.front().refusal.empty());
}

TEST_F(pipe_fabric, an_end_that_can_make_no_line_leaves_tensors_to_the_connection) {
  there_fabrics_->no_lines = {errc::unsupported, "no memory can be locked"};
  connect({"ucx", "basic"});
  EXPECT_EQ(send(host, host), "basic");
  EXPECT_EQ(send(host, host), "basic");
  EXPECT_EQ(here_fabrics_->lines, 1) << "it is not tried again";
  const auto plan = here_.explain();
  ASSERT_TRUE(plan.ok());
  EXPECT_NE(plan->received.front().channels.front().refusal.find("no memory can be locked"), std::string::npos);
  connect({"ucx"});
  EXPECT_NE(send(host, host).find("no memory can be locked"), std::string::npos);
}

TEST_F(pipe_fabric, what_the_fabric_does_not_move_ends_at_its_deadline_and_the_next_tensor_has_a_new_line) {
  connect({"ucx"});
  EXPECT_EQ(send(host, host), "ucx");
  there_fabrics_->hangs = true;
  const auto content = some_bytes(6 * mib, 1);
  bytes room(content.size());
  auto sent = there_.send({"", {}, {{content.data(), content.size()}}});
  incoming_message come;
  ASSERT_TRUE(here_.next(come).wait().ok());
  const auto got = come.receive({{room.data(), room.size()}}, within(50ms)).wait();
  EXPECT_EQ(got.error.code(), errc::timed_out) << told(got.error);
  EXPECT_FALSE(sent.wait().ok());
  EXPECT_EQ(room, bytes(content.size())) << "nothing has come";
  there_fabrics_->hangs = false;
  EXPECT_EQ(send(host, host), "ucx");
  EXPECT_GE(here_fabrics_->lines, 2);
}

TEST_F(pipe_fabric, a_tensor_that_takes_the_way_of_the_last_is_taken_over_too) {
  there_fabrics_->no_lines = {errc::io, "no line just now"};
  connect({"ucx", "basic"});
  EXPECT_EQ(send(host, host), "basic");
  EXPECT_EQ(send(host, host), "basic");
}

// The first tensor has a line; the second, of the GPU, has none at the other end, which shows while pieces of the first are under way.
TEST_F(pipe_fabric, a_tensor_behind_others_is_taken_over_too) {
  add_network_card("mlx5_0", "0000:3c:00.0", "4: ACTIVE");
  add_module();
  here_fabrics_->knows_cuda = true;
  there_fabrics_->knows_cuda = true;
  connect({"cuda_gdr", "cuda_basic"});
  EXPECT_EQ(send(host, gpu), "cuda_gdr");
  there_fabrics_->no_lines = {errc::io, "no line just now"};
  const std::size_t size = 100 * mib;
  const auto content = some_bytes(size, 5);
  guarded_memory first(house_, gpu, size, 0);
  guarded_memory source(house_, gpu, size, 0);
  source.fill(content);
  bytes second(size);
  auto sent = there_.send({"", {}, {{content.data(), size}, {source.data(), size}}}, within(30s));
  incoming_message come;
  ASSERT_TRUE(here_.next(come).wait().ok());
  const auto got = come.receive({{first.data(), size}, {second.data(), size}}, within(30s)).wait();
  EXPECT_TRUE(got.ok()) << told(got.error);
  EXPECT_TRUE(sent.wait().ok());
  first.expect(content);
  EXPECT_TRUE(second == content);
}

TEST_F(pipe_fabric, a_sender_that_takes_back_what_hangs_ends_too) {
  connect({"ucx"});
  there_fabrics_->hangs = true;
  auto content = some_bytes(6 * mib, 1);
  bytes room(content.size());
  auto sent = there_.send({"", {}, {{content.data(), content.size()}}});
  incoming_message come;
  ASSERT_TRUE(here_.next(come).wait().ok());
  auto receiving = come.receive({{room.data(), room.size()}});
  ASSERT_TRUE(comes_true([&] { return there_fabrics_->held > 0; }));
  sent.cancel();
  EXPECT_EQ(sent.wait().error.code(), errc::cancelled);
  EXPECT_FALSE(receiving.wait().ok());
  auto again = there_.send({"", {}, {{content.data(), content.size()}}});
  incoming_message other;
  ASSERT_TRUE(here_.next(other).wait().ok());
  auto hanging = other.receive({{room.data(), room.size()}});
  there_.close();
  EXPECT_EQ(again.wait().error.code(), errc::closed);
  EXPECT_EQ(hanging.wait().error.code(), errc::closed);
}

class pipe_fabric_faults : public pipe_fabric, public ::testing::WithParamInterface<way> {
 protected:
  void SetUp() override {
    pipe_fabric::SetUp();
    add_network_card("mlx5_0", "0000:3c:00.0", "4: ACTIVE");
  }
  // Whether all went well. Everything ends; what ends well is right.
  bool speak() {
    doors_->knows_cuda = true;
    const auto& channels = GetParam().channels;
    auto server = pipes::server::make(house_.engine().core(), sys::linux_peer(), {channels}, doors_, sysfs());
    if (!server) return false;
    const pipe_context context(*std::move(server));
    auto listener = context.listen(GetParam().url);
    if (!listener) return false;
    penstock::pipe here;
    auto accepting = listener->accept(here);
    auto there = context.connect(listener->url());
    if (!there || !accepting.wait().ok()) return false;
    constexpr std::size_t size = 5 * mib;
    const auto content = some_bytes(size, 7);
    guarded_memory on_device(house_, memory_place::device, size, 0);
    on_device.fill(content);
    bool all_well = true;
    for (int i = 0; i < 3; ++i) {
      guarded_memory target(house_, memory_place::device, size, 0);
      bytes room(size);
      incoming_message come;
      const auto soon = within(2s);
      auto receiving = here.receive(come, {{room.data(), size}, {target.data(), size}}, soon);
      auto sent = there->send({"there", {}, {{on_device.data(), size}, {content.data(), size}}}, soon);
      const auto got = receiving.wait();
      come = {};
      const auto left = sent.wait();
      EXPECT_EQ(got.ok(), left.ok()) << told(got.error) << "; " << told(left.error);
      EXPECT_NE(got.error.code(), errc::timed_out) << "who waits is told";
      if (got.ok()) {
        EXPECT_EQ(room, content);
        target.expect(content);
      }
      all_well = all_well && got.ok();
    }
    return all_well;
  }
  // Of the calls, each that the steps come to fails once, and from then on.
  void try_all(std::uint64_t step, std::uint64_t lasting_step);

  std::shared_ptr<fabric_doors> doors_ = std::make_shared<fabric_doors>();
};

void pipe_fabric_faults::try_all(std::uint64_t step, std::uint64_t lasting_step) {
  ASSERT_TRUE(speak());
  const auto calls = doors_->calls();
  EXPECT_GT(calls, 20U);
  const auto before = open_descriptors();
  for (const bool lasting : {false, true}) {
    for (std::uint64_t nth = 1; nth <= std::min<std::uint64_t>(calls + 1, 40); nth += lasting ? lasting_step : step) {
      SCOPED_TRACE("call " + std::to_string(nth) + (lasting ? " and all that follow" : ""));
      doors_ = std::make_shared<fabric_doors>();
      doors_->fail(nth, lasting ? ~std::uint64_t{0} / 4 : 1);
      (void)speak();
      if (HasFatalFailure()) return;
    }
  }
  doors_ = std::make_shared<fabric_doors>();
  EXPECT_TRUE(speak());
  for (int i = 0; i < 200 && open_descriptors() > before; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_LE(open_descriptors(), before);
}

TEST_P(pipe_fabric_faults, calls_may_fail_once_and_from_then_on) { try_all(2, 4); }
TEST_P(pipe_fabric_faults, long_every_call_may_fail_once_and_from_then_on) { try_all(1, 1); }

INSTANTIATE_TEST_SUITE_P(ways, pipe_fabric_faults,
                         ::testing::Values(way{"alone", "tcp://127.0.0.1:0", {"ucx", "cuda_gdr"}},
                                           way{"with_others", "tcp://127.0.0.1:0", {"ucx", "cuda_gdr", "basic", "cuda_basic"}}),
                         name_of_way);

}  // namespace
}  // namespace penstock::testing
