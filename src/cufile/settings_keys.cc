#include "cufile/settings_keys.hpp"

#include <algorithm>
#include <type_traits>

namespace penstock::cufile {

namespace {

using enum key_kind;

template <class Member>
constexpr key with(key changed, Member key::*member, std::type_identity_t<Member> value) {
  changed.*member = value;
  return changed;
}

constexpr std::string_view nvidia_library = "used by NVIDIA's library for GPU-direct transfers";
constexpr std::string_view pool_of_less = "limits pinned memory (at least 36 MiB) if the pool is smaller than the default";
constexpr std::string_view split_always = "nothing: Penstock always splits off unaligned ends";
constexpr std::string_view is_denied =
    "matching files are never read or written GPU-direct; they are refused (5008) if allow_compat_mode is false";

// Builds a key as one row of the table.
struct row : key {
  constexpr explicit row(const key& other) : key(other) {}
  constexpr row(key_kind its_kind, std::string_view its_name, std::string_view its_standard = {}) : key{its_name, its_kind, its_standard} {}
  constexpr row in(std::size_t least, std::size_t most) const { return row(with(*this, &key::range, {least, most})); }
  constexpr row by(std::size_t its_step) const { return row(with(*this, &key::step, its_step)); }
  constexpr row one_of(std::string_view its_choices) const { return row(with(*this, &key::choices, its_choices)); }
  constexpr row also(std::string_view one, std::string_view other = {}) const { return row(with(*this, &key::aliases, {one, other})); }
  constexpr row from(const char* its_variable) const { return row(with(*this, &key::variable, its_variable)); }
  constexpr row sets(int its_parameter) const { return row(with(*this, &key::parameter, its_parameter)); }
  constexpr row does(std::string_view its_effect) const { return told(key_role::acts, its_effect); }
  constexpr row idle(std::string_view why) const { return told(key_role::idle, why); }
  // Used by NVIDIA's library.
  constexpr row below(std::string_view what = nvidia_library) const { return told(key_role::below, what); }
  constexpr row handed() const { return row(with(*this, &key::is_handed, true)); }
  constexpr row told(key_role its_role, std::string_view what) const {
    return row(with(with(*this, &key::role, its_role), &key::effect, what));
  }
};

// If the guides and NVIDIA's library differ, the default is the value returned by the library (1.17).
constexpr key keys[] = {
    row(word, "logging.dir")
        .sets(CUFILE_PARAM_LOG_DIR)
        .does("directory of the log file cufile.log; CUFILE_LOGFILE_PATH overrides it. There is no log unless one of the two is set"),
    row(word, "logging.level", "ERROR")
        .one_of("NOTICE ERROR WARN INFO DEBUG TRACE")
        .from("CUFILE_LOGGING_LEVEL")
        .sets(CUFILE_PARAM_LOGGING_LEVEL)
        .does("level of the log"),
    row(limit, "logging.max_file_size_mb", "32")
        .in(1, 4096)
        .from("CUFILE_LOGFILE_MAX_SIZE_MB")
        .does("the log file is emptied when it reaches this size"),

    row(flag, "profile.nvtx", "false")
        .from("CUFILE_NVTX")
        .sets(CUFILE_PARAM_PROFILE_NVTX)
        .does("if true, each request is an NVTX range, as with PENSTOCK_NVTX=1"),
    row(size, "profile.cufile_stats", "0")
        .in(0, 3)
        .from("CUFILE_STATS_LEVEL")
        .sets(CUFILE_PARAM_PROFILE_STATS)
        .does("level of the statistics"),

    row(size, "execution.max_io_queue_depth", "128")
        .in(1, 256)
        .sets(CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH)
        .idle("nothing: waiting requests use no thread, so their number is not limited")
        .handed(),
    row(size, "execution.max_io_threads", "4")
        .in(0, 32)
        .sets(CUFILE_PARAM_EXECUTION_MAX_IO_THREADS)
        .does("0 disables stream-ordered calls; a value other than the default sets the number of copy threads per file system")
        .handed(),
    row(flag, "execution.parallel_io", "true")
        .sets(CUFILE_PARAM_EXECUTION_PARALLEL_IO)
        .does("if false, stream-ordered calls are disabled and requests are split into the largest possible pieces")
        .handed(),
    row(size, "execution.min_io_threshold_size_kb", "8192")
        .in(4, 4294967295)
        .sets(CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB)
        .does("if not the default: requests up to this size are split into the largest possible pieces")
        .handed(),
    row(size, "execution.max_request_parallelism", "4")
        .in(0, 8)
        .sets(CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM)
        .does("if not the default: number of worker threads that a request is split for; 0 and 1: the largest possible pieces")
        .handed(),

    row(size, "properties.max_direct_io_size_kb", "1024")
        .in(64, 16384)
        .by(64)
        .also("properties.max_direct_io_size")
        .sets(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB)
        .does("if not the default: largest request to NVIDIA's library; the default means 16 MiB")
        .handed(),
    row(size, "properties.max_device_cache_size_kb", "131072")
        .also("properties.max_device_cache_size")
        .sets(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB)
        .does("limits pinned memory (at least 36 MiB) if less than the default; also used by NVIDIA's library")
        .handed(),
    row(size, "properties.per_buffer_cache_size_kb", "1024")
        .in(64, 16384)
        .by(64)
        .also("properties.per_buffer_cache_size")
        .sets(CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB)
        .below()
        .handed(),
    row(slab_sizes, "properties.gpu_bounce_buffer_slab_config.slab_size_kb", "1024 8192 16384 65536")
        .by(4)
        .also("properties.gpu_bounce_buffer_slab_size_kb")
        .sets(CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_SIZE_KB)
        .does(pool_of_less),
    row(slab_counts, "properties.gpu_bounce_buffer_slab_config.slab_count", "128 8 4 2")
        .also("properties.gpu_bounce_buffer_slab_count")
        .sets(CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_COUNT)
        .does(pool_of_less),
    row(size, "properties.max_device_pinned_mem_size_kb", "33554432")
        .in(64, 0)
        .also("properties.max_device_pinned_mem_size")
        .sets(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB)
        .below()
        .handed(),
    row(slab_sizes, "properties.posix_pool_slab_size_kb", "4 1024 16384")
        .by(4)
        .sets(CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB)
        .does(pool_of_less),
    row(slab_counts, "properties.posix_pool_slab_count", "128 64 64").sets(CUFILE_PARAM_POSIX_POOL_SLAB_COUNT).does(pool_of_less),
    row(flag, "properties.use_poll_mode", "false").sets(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE).below().handed(),
    row(size, "properties.poll_mode_max_size_kb", "4").in(4, 18014398509481980).sets(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB).below().handed(),
    row(flag, "properties.use_pci_p2pdma", "false")
        .from("CUFILE_USE_PCIP2PDMA")
        .sets(CUFILE_PARAM_USE_PCIP2PDMA)
        .below("used by NVIDIA's library for GPU-direct transfers; Penstock sets it to true if the GPU driver is set up for P2PDMA")
        .handed(),
    row(flag, "properties.allow_compat_mode", "true")
        .also("properties.use_compat_mode")
        .from("CUFILE_ALLOW_COMPAT_MODE")
        .sets(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE)
        .does("if false, files that cannot be read or written GPU-direct are refused (5008); otherwise they go through pinned memory"),
    row(flag, "properties.force_compat_mode", "false")
        .from("CUFILE_FORCE_COMPAT_MODE")
        .sets(CUFILE_PARAM_FORCE_COMPAT_MODE)
        .does("if true, no transfer is GPU-direct"),
    row(flag, "properties.vanilla_posix_io_mode", "false")
        .sets(CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE)
        .does("if true, no transfer is GPU-direct, and reads go through the page cache"),
    row(flag, "properties.gds_fallback_io", "false")
        .sets(CUFILE_PARAM_GDS_FALLBACK_IO)
        .does("if true and allow_compat_mode is false, transfers that fail GPU-direct continue through pinned memory"),
    row(flag, "properties.allow_system_memory", "true")
        .sets(CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY)
        .does("if false, host memory is refused"),
    row(flag, "properties.force_odirect_mode", "false")
        .sets(CUFILE_PARAM_FORCE_ODIRECT_MODE)
        .does("if true, reads, and large aligned writes from device memory, bypass the page cache"),
    row(flag, "properties.prefer_iouring", "false")
        .sets(CUFILE_PARAM_PREFER_IO_URING)
        .idle("nothing: io_uring is used if the kernel allows it"),
    row(flag, "properties.compat_odirect_unaligned_read_split", "false").idle(split_always),
    row(size, "properties.compat_odirect_unaligned_read_split_min_size_kb", "128").idle(split_always),
    row(size, "properties.io_batchsize", "128")
        .in(1, 256)
        .also("properties.max_batch_io_size", "profile.io_batchsize")
        .sets(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE)
        .does("if not the default: largest number of entries in a batch; the default means 256"),
    row(size, "properties.max_batch_io_timeout_msecs", "5")
        .in(1, 1000)
        .sets(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS)
        .idle("nothing: entries start at once, and each wait has its own timeout; cuFileDriverGetProperties reports the value"),
    row(word, "properties.io_priority", "default")
        .one_of("default low med high")
        .does("if low, other requests go first; other values have no effect"),
    row(flag, "properties.gds_rdma_write_support", "true").below(),
    row(addresses, "properties.rdma_dev_addr_list").below(),
    row(word, "properties.rdma_load_balancing_policy", "RoundRobin")
        .one_of("RoundRobin FirstFit MaxMinFit RoundRobinMaxMin Randomized")
        .also("properties.rdma_peer_affinity_policy")
        .below(),
    row(flag, "properties.rdma_dynamic_routing", "false").below(),
    row(list, "properties.rdma_dynamic_routing_order", "GPU_MEM_NVLINKS GPU_MEM SYS_MEM P2P")
        .one_of("GPU_MEM_NVLINKS GPU_MEM SYS_MEM P2P")
        .below(),
    row(word, "properties.rdma_peer_type", "peer_mem").one_of("peer_mem dmabuf").below(),
    row(word, "properties.rdma_transport_type", "DC_V1").one_of("DC_V1 EXT_RC_V1").sets(CUFILE_PARAM_RDMA_TRANSPORT).below(),
    row(number, "properties.rdma_dc_key", "0xffeeddcc").below(),
    row(number, "properties.rdma_access_mask", "0x1f").below(),
    row(size, "properties.rdma_topN_ranks", "1").below(),
    row(flag, "properties.allow_rdma_token_reset", "false").below(),
    row(flag, "properties.rdma_multipath_enabled", "false").below(),
    row(size, "properties.rdma_multipath_max_backup_devices", "0").below(),
    row(size, "properties.rdma_multipath_io_retry_count", "0").below(),
    row(size, "properties.rdma_multipath_io_retry_delay_ms", "0").below(),
    row(flag, "properties.rdma_multipath_failback_enabled", "false").below(),
    row(size, "properties.rdma_multipath_failback_delay_ms", "0").below(),
    row(size, "properties.rdma_multipath_health_check_interval_ms", "0").below(),
    row(flag, "properties.rdma_multipath_async_event_monitoring", "false").below(),
    row(size, "properties.rdma_multipath_unhealthy_threshold", "0").below(),

    row(size, "misc.rdma_token_reset_timeout_secs", "30").also("miscellaneous.rdma_token_reset_timeout_secs").below(),

    row(size, "sparse.min_p2pdma_threshold_kb", "8").below(),
    row(flag, "sparse.p2p_compat_enable", "true").below(),

    row(flag, "fs.generic.posix_unaligned_writes", "false").does("if true, unaligned blocking writes go through pinned memory as a whole"),
    row(size, "fs.lustre.posix_gds_min_kb", "0").below(),
    row(addresses, "fs.lustre.rdma_dev_addr_list").below(),
    row(table, "fs.lustre.mount_table").below(),
    row(flag, "fs.lustre.use_pci_p2pdma", "false").below(),
    row(size, "fs.beegfs.posix_gds_min_kb", "0").below(),
    row(addresses, "fs.beegfs.rdma_dev_addr_list").below(),
    row(table, "fs.beegfs.mount_table").below(),
    row(flag, "fs.beegfs.use_pci_p2pdma", "false").below(),
    row(size, "fs.scatefs.posix_gds_min_kb", "0").below(),
    row(addresses, "fs.scatefs.rdma_dev_addr_list").below(),
    row(table, "fs.scatefs.mount_table").below(),
    row(flag, "fs.scatefs.use_pci_p2pdma", "false").below(),
    row(addresses, "fs.nfs.rdma_dev_addr_list").below(),
    row(table, "fs.nfs.mount_table").below(),
    row(flag, "fs.nfs.use_pci_p2pdma", "false").below(),
    row(flag, "fs.weka.rdma_write_support", "false").below(),
    row(addresses, "fs.weka.rdma_dev_addr_list").below(),
    row(table, "fs.weka.mount_table").below(),
    row(flag, "fs.weka.use_pci_p2pdma", "false").below(),
    row(flag, "fs.gpfs.gds_write_support", "false").below(),
    row(flag, "fs.gpfs.gds_async_support", "true").below(),
    row(addresses, "fs.gpfs.rdma_dev_addr_list").below(),
    row(table, "fs.gpfs.mount_table").below(),
    row(flag, "fs.gpfs.use_pci_p2pdma", "false").below(),
    row(flag, "fs.virtiofs.use_pci_p2pdma", "false").below(),

    row(flag, "block.nvme.use_pci_p2pdma", "false").below(),
    row(flag, "block.nvmeof.use_pci_p2pdma", "false").below(),
    row(flag, "block.raid.use_pci_p2pdma", "false").below(),
    row(flag, "block.raid1.use_pci_p2pdma", "false").below(),
    row(flag, "block.raid10.use_pci_p2pdma", "false").below(),

    row(list, "denylist.drivers").also("blacklist.drivers").does(is_denied),
    row(list, "denylist.devices").also("blacklist.devices").does(is_denied),
    row(list, "denylist.mounts").also("blacklist.mounts").does(is_denied),
    row(list, "denylist.filesystems").also("blacklist.filesystems").does(is_denied),

    row(flag, "miscellaneous.api_check_aggressive", "false")
        .sets(CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE)
        .below("used by NVIDIA's library for GPU-direct transfers; Penstock always checks all arguments")
        .handed(),
    row(flag, "miscellaneous.skip_topology_detection", "false")
        .from("CUFILE_SKIP_TOPOLOGY_DETECTION")
        .sets(CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION)
        .does("if true, Penstock does not look for links to a GPU through other GPUs")
        .handed(),
    row(flag, "miscellaneous.stream_memops_bypass", "false")
        .sets(CUFILE_PARAM_STREAM_MEMOPS_BYPASS)
        .idle("nothing: Penstock detects whether a stream can wait for memory"),
    row(flag, "miscellaneous.enable_static_routing", "false").below(),
    row(word, "miscellaneous.static_routing_filepath", "/etc/topology.json").below(),
};

// Used only by NVIDIA's library, which reads them itself.
constexpr lone_variable lone_variables[] = {
    {"CUFILE_DMABUF_ENABLE", flag, {}, nvidia_library},      {"CUFILE_IB_SL", size, {0, 15}, nvidia_library},
    {"CUFILE_ETH_SL", size, {0, 7}, nvidia_library},         {"CUFILE_CQ_DEPTH", size, {}, nvidia_library},
    {"CUFILE_MIN_RNR_TIMER", size, {0, 31}, nvidia_library}, {"CUFILE_RDMA_HOP_LIMIT", size, {0, 255}, nvidia_library},
    {"CUFILE_RDMA_PKEY_INDEX", size, {}, nvidia_library},    {"CUFILE_RDMA_SR_MAX_WR", size, {}, nvidia_library},
    {"CUFILE_RDMA_SR_MAX_SGE", size, {}, nvidia_library},
};

bool called(const key& candidate, std::string_view name) {
  return candidate.name == name || std::ranges::find(candidate.aliases, name) != candidate.aliases.end();
}

bool is_below(std::string_view name, std::string_view section) {
  return name.size() > section.size() && name.starts_with(section) && name[section.size()] == '.';
}

}  // namespace

std::span<const key> all_keys() noexcept { return keys; }
std::span<const lone_variable> all_lone_variables() noexcept { return lone_variables; }

const key* find_key(std::string_view name) {
  const auto found = std::ranges::find_if(keys, [&](const key& candidate) { return called(candidate, name); });
  return name.empty() || found == std::end(keys) ? nullptr : &*found;
}

const key* find_key(key_kind kind, int parameter) {
  const auto found =
      std::ranges::find_if(keys, [&](const key& candidate) { return candidate.kind == kind && candidate.parameter == parameter; });
  return found == std::end(keys) ? nullptr : &*found;
}

// Returns true for a prefix of known keys, such as "fs.lustre".
bool is_section(std::string_view name) {
  return std::ranges::any_of(keys, [&](const key& candidate) {
    return is_below(candidate.name, name) || std::ranges::any_of(candidate.aliases, [&](auto alias) { return is_below(alias, name); });
  });
}

}  // namespace penstock::cufile
