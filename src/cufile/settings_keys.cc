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

// Writes a key as one row of the table.
struct row : key {
  constexpr explicit row(const key& other) : key(other) {}
  constexpr row(key_kind its_kind, std::string_view its_name, std::string_view its_standard = {}) : key{its_name, its_kind, its_standard} {}
  constexpr row in(std::size_t least, std::size_t most) const { return row(with(*this, &key::range, {least, most})); }
  constexpr row by(std::size_t its_step) const { return row(with(*this, &key::step, its_step)); }
  constexpr row one_of(std::string_view its_choices) const { return row(with(*this, &key::choices, its_choices)); }
  constexpr row also(std::string_view one, std::string_view other = {}) const { return row(with(*this, &key::aliases, {one, other})); }
  constexpr row from(const char* its_variable) const { return row(with(*this, &key::variable, its_variable)); }
  constexpr row sets(int its_parameter) const { return row(with(*this, &key::parameter, its_parameter)); }
  constexpr row does(std::string_view its_effect) const { return row(with(*this, &key::effect, its_effect)); }
};

// Where the guides and NVIDIA's library differ, the default is what the library (1.17) answers.
constexpr key keys[] = {
    row(word, "logging.dir")
        .sets(CUFILE_PARAM_LOG_DIR)
        .does("the log is cufile.log in this directory, unless CUFILE_LOGFILE_PATH is set; without either there is no log"),
    row(word, "logging.level", "ERROR")
        .one_of("NOTICE ERROR WARN INFO DEBUG TRACE")
        .from("CUFILE_LOGGING_LEVEL")
        .sets(CUFILE_PARAM_LOGGING_LEVEL)
        .does("what the log holds"),
    row(limit, "logging.max_file_size_mb", "32")
        .in(1, 4096)
        .from("CUFILE_LOGFILE_MAX_SIZE_MB")
        .does("the log starts again from empty at this size"),

    row(flag, "profile.nvtx", "false").from("CUFILE_NVTX").sets(CUFILE_PARAM_PROFILE_NVTX),
    row(size, "profile.cufile_stats", "0")
        .in(0, 3)
        .from("CUFILE_STATS_LEVEL")
        .sets(CUFILE_PARAM_PROFILE_STATS)
        .does("the level of the statistics"),

    row(size, "execution.max_io_queue_depth", "128").in(1, 256).sets(CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH),
    row(size, "execution.max_io_threads", "4")
        .in(0, 32)
        .sets(CUFILE_PARAM_EXECUTION_MAX_IO_THREADS)
        .does("0 switches stream-ordered reads and writes off; any other number changes nothing"),
    row(flag, "execution.parallel_io", "true")
        .sets(CUFILE_PARAM_EXECUTION_PARALLEL_IO)
        .does("false switches stream-ordered reads and writes off"),
    row(size, "execution.min_io_threshold_size_kb", "8192").in(4, 4294967295).sets(CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB),
    row(size, "execution.max_request_parallelism", "4").in(0, 8).sets(CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM),

    row(size, "properties.max_direct_io_size_kb", "1024")
        .in(64, 16384)
        .by(64)
        .also("properties.max_direct_io_size")
        .sets(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB),
    row(size, "properties.max_device_cache_size_kb", "131072")
        .also("properties.max_device_cache_size")
        .sets(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB),
    row(size, "properties.per_buffer_cache_size_kb", "1024")
        .in(64, 16384)
        .by(64)
        .also("properties.per_buffer_cache_size")
        .sets(CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB),
    row(slab_sizes, "properties.gpu_bounce_buffer_slab_config.slab_size_kb", "1024 8192 16384 65536")
        .by(4)
        .also("properties.gpu_bounce_buffer_slab_size_kb")
        .sets(CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_SIZE_KB),
    row(slab_counts, "properties.gpu_bounce_buffer_slab_config.slab_count", "128 8 4 2")
        .also("properties.gpu_bounce_buffer_slab_count")
        .sets(CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_COUNT),
    row(size, "properties.max_device_pinned_mem_size_kb", "33554432")
        .in(64, 0)
        .also("properties.max_device_pinned_mem_size")
        .sets(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB),
    row(slab_sizes, "properties.posix_pool_slab_size_kb", "4 1024 16384").by(4).sets(CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB),
    row(slab_counts, "properties.posix_pool_slab_count", "128 64 64").sets(CUFILE_PARAM_POSIX_POOL_SLAB_COUNT),
    row(flag, "properties.use_poll_mode", "false").sets(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE),
    row(size, "properties.poll_mode_max_size_kb", "4").in(4, 18014398509481980).sets(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB),
    row(flag, "properties.use_pci_p2pdma", "false").from("CUFILE_USE_PCIP2PDMA").sets(CUFILE_PARAM_USE_PCIP2PDMA),
    row(flag, "properties.allow_compat_mode", "true")
        .also("properties.use_compat_mode")
        .from("CUFILE_ALLOW_COMPAT_MODE")
        .sets(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE)
        .does("false refuses files that the direct path cannot serve"),
    row(flag, "properties.force_compat_mode", "false")
        .from("CUFILE_FORCE_COMPAT_MODE")
        .sets(CUFILE_PARAM_FORCE_COMPAT_MODE)
        .does("true keeps every request off the direct path"),
    row(flag, "properties.vanilla_posix_io_mode", "false").sets(CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE),
    row(flag, "properties.gds_fallback_io", "false").sets(CUFILE_PARAM_GDS_FALLBACK_IO),
    row(flag, "properties.allow_system_memory", "true").sets(CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY).does("false refuses host memory"),
    row(flag, "properties.force_odirect_mode", "false").sets(CUFILE_PARAM_FORCE_ODIRECT_MODE),
    row(flag, "properties.prefer_iouring", "false").sets(CUFILE_PARAM_PREFER_IO_URING),
    row(flag, "properties.compat_odirect_unaligned_read_split", "false"),
    row(size, "properties.compat_odirect_unaligned_read_split_min_size_kb", "128"),
    row(size, "properties.io_batchsize", "128")
        .in(1, 256)
        .also("properties.max_batch_io_size", "profile.io_batchsize")
        .sets(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE)
        .does("the size of a batch that the driver's properties tell; batches of up to 256 are set up all the same"),
    row(size, "properties.max_batch_io_timeout_msecs", "5")
        .in(1, 1000)
        .sets(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS)
        .does("the timeout that the driver's properties tell"),
    row(word, "properties.io_priority", "default").one_of("default low med high"),
    row(flag, "properties.gds_rdma_write_support", "true"),
    row(list, "properties.rdma_dev_addr_list"),
    row(word, "properties.rdma_load_balancing_policy", "RoundRobin")
        .one_of("RoundRobin FirstFit MaxMinFit RoundRobinMaxMin Randomized")
        .also("properties.rdma_peer_affinity_policy"),
    row(flag, "properties.rdma_dynamic_routing", "false"),
    row(list, "properties.rdma_dynamic_routing_order", "GPU_MEM_NVLINKS GPU_MEM SYS_MEM P2P").one_of("GPU_MEM_NVLINKS GPU_MEM SYS_MEM P2P"),
    row(word, "properties.rdma_peer_type", "peer_mem").one_of("peer_mem dmabuf"),
    row(word, "properties.rdma_transport_type", "DC_V1").one_of("DC_V1 EXT_RC_V1").sets(CUFILE_PARAM_RDMA_TRANSPORT),
    row(anything, "properties.rdma_dc_key", "0xffeeddcc"),
    row(anything, "properties.rdma_access_mask", "0x1f"),
    row(anything, "properties.rdma_topN_ranks", "1"),
    row(flag, "properties.allow_rdma_token_reset", "false"),
    row(anything, "properties.rdma_multipath_enabled"),
    row(anything, "properties.rdma_multipath_max_backup_devices"),
    row(anything, "properties.rdma_multipath_io_retry_count"),
    row(anything, "properties.rdma_multipath_io_retry_delay_ms"),
    row(anything, "properties.rdma_multipath_failback_enabled"),
    row(anything, "properties.rdma_multipath_failback_delay_ms"),
    row(anything, "properties.rdma_multipath_health_check_interval_ms"),
    row(anything, "properties.rdma_multipath_async_event_monitoring"),
    row(anything, "properties.rdma_multipath_unhealthy_threshold"),

    row(size, "misc.rdma_token_reset_timeout_secs", "30").also("miscellaneous.rdma_token_reset_timeout_secs"),

    row(size, "sparse.min_p2pdma_threshold_kb", "8"),
    row(flag, "sparse.p2p_compat_enable", "true"),

    row(flag, "fs.generic.posix_unaligned_writes", "false"),
    row(size, "fs.lustre.posix_gds_min_kb", "0"),
    row(list, "fs.lustre.rdma_dev_addr_list"),
    row(table, "fs.lustre.mount_table"),
    row(flag, "fs.lustre.use_pci_p2pdma", "false"),
    row(size, "fs.beegfs.posix_gds_min_kb", "0"),
    row(list, "fs.beegfs.rdma_dev_addr_list"),
    row(table, "fs.beegfs.mount_table"),
    row(flag, "fs.beegfs.use_pci_p2pdma", "false"),
    row(size, "fs.scatefs.posix_gds_min_kb", "0"),
    row(list, "fs.scatefs.rdma_dev_addr_list"),
    row(table, "fs.scatefs.mount_table"),
    row(flag, "fs.scatefs.use_pci_p2pdma", "false"),
    row(list, "fs.nfs.rdma_dev_addr_list"),
    row(table, "fs.nfs.mount_table"),
    row(flag, "fs.nfs.use_pci_p2pdma", "false"),
    row(flag, "fs.weka.rdma_write_support", "false"),
    row(list, "fs.weka.rdma_dev_addr_list"),
    row(table, "fs.weka.mount_table"),
    row(flag, "fs.weka.use_pci_p2pdma", "false"),
    row(flag, "fs.gpfs.gds_write_support", "false"),
    row(flag, "fs.gpfs.gds_async_support", "true"),
    row(list, "fs.gpfs.rdma_dev_addr_list"),
    row(table, "fs.gpfs.mount_table"),
    row(flag, "fs.gpfs.use_pci_p2pdma", "false"),
    row(flag, "fs.virtiofs.use_pci_p2pdma", "false"),

    row(flag, "block.nvme.use_pci_p2pdma", "false"),
    row(flag, "block.nvmeof.use_pci_p2pdma", "false"),
    row(flag, "block.raid.use_pci_p2pdma", "false"),
    row(flag, "block.raid1.use_pci_p2pdma", "false"),
    row(flag, "block.raid10.use_pci_p2pdma", "false"),

    row(list, "denylist.drivers").also("blacklist.drivers"),
    row(list, "denylist.devices").also("blacklist.devices"),
    row(list, "denylist.mounts").also("blacklist.mounts"),
    row(list, "denylist.filesystems").also("blacklist.filesystems"),

    row(flag, "miscellaneous.api_check_aggressive", "false").sets(CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE),
    row(flag, "miscellaneous.skip_topology_detection", "false")
        .from("CUFILE_SKIP_TOPOLOGY_DETECTION")
        .sets(CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION),
    row(flag, "miscellaneous.stream_memops_bypass", "false").sets(CUFILE_PARAM_STREAM_MEMOPS_BYPASS),
    row(flag, "miscellaneous.enable_static_routing", "false"),
    row(word, "miscellaneous.static_routing_filepath", "/etc/topology.json"),
};

bool called(const key& candidate, std::string_view name) {
  return candidate.name == name || std::ranges::find(candidate.aliases, name) != candidate.aliases.end();
}

bool is_below(std::string_view name, std::string_view section) {
  return name.size() > section.size() && name.starts_with(section) && name[section.size()] == '.';
}

}  // namespace

std::span<const key> all_keys() noexcept { return keys; }

const key* find_key(std::string_view name) {
  const auto found = std::ranges::find_if(keys, [&](const key& candidate) { return called(candidate, name); });
  return name.empty() || found == std::end(keys) ? nullptr : &*found;
}

const key* find_key(key_kind kind, int parameter) {
  const auto found =
      std::ranges::find_if(keys, [&](const key& candidate) { return candidate.kind == kind && candidate.parameter == parameter; });
  return found == std::end(keys) ? nullptr : &*found;
}

// "fs.lustre": what known keys begin with.
bool is_section(std::string_view name) {
  return std::ranges::any_of(keys, [&](const key& candidate) {
    return is_below(candidate.name, name) || std::ranges::any_of(candidate.aliases, [&](auto alias) { return is_below(alias, name); });
  });
}

}  // namespace penstock::cufile
