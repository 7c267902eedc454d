// Options for an engine, a file and a request. Plain values; the defaults suit most programs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/detail/cufile_support.hpp"
#include "penstock/status.hpp"

namespace penstock {

class remote_retries;

// The paths that bytes can take between a file and memory, by number; new ones are added at the end. docs/internals/architecture.md
// describes when each is chosen.
enum class path_kind : std::uint8_t { automatic = 0, posix, staged, mapped, direct, dma_buf };

// `speed` uses the fastest path, `cpu` the path that needs the least CPU time per byte.
enum class preference : std::uint8_t { automatic = 0, speed, cpu };

// How a read into device memory treats bytes that are not in the page cache:
// - fill reads them through the page cache, in file order and with few threads, so that the next read finds them cached.
// - bypass reads past the page cache (O_DIRECT) if the file system supports that, so that nothing new enters it.
// - automatic ("auto") keeps a file if all of it fits into memory and reading past the page cache has not been faster on this machine.
//   Small random reads, and descriptors adopted with O_DIRECT, bypass it.
// Cached bytes are read from the page cache in all three cases, except that with bypass a small read that is only partly cached bypasses it
// completely. Blocking reads up to 128 KiB, and all reads from a disk into host memory, use the page cache unless you select bypass. Reads
// from file systems with a slow server bypass the page cache unless you select fill, even into host memory. If larger pieces must use the
// page cache with bypass, the kernel drops them afterwards if it supports that (RWF_DONTCACHE, Linux 6.14; ext4, XFS and some others).
enum class cache_use : std::uint8_t { automatic = 0, fill, bypass, keep [[deprecated("its name is fill now")]] = fill };

// Which requests run first. background is for requests whose results are not needed soon, such as write-behind. They use a few threads and
// a share of staging memory of their own. While normal requests run on the same file system, and for up to a millisecond afterwards, one
// background piece starts every 20 ms, so background requests always finish. A piece in flight is never interrupted. Stream-ordered
// requests are always normal.
enum class request_priority : std::uint8_t { normal = 0, background };

PENSTOCK_API std::string_view to_string(path_kind path) noexcept;
PENSTOCK_API std::string_view to_string(preference prefer) noexcept;
PENSTOCK_API std::string_view to_string(cache_use cache) noexcept;
PENSTOCK_API std::string_view to_string(request_priority priority) noexcept;
// Returns the names of all paths, by number; the first is "automatic".
PENSTOCK_API std::vector<std::string_view> path_names();
// The inverse of to_string. Error: invalid_argument; the message includes the word and lists the valid ones. parse_cache_use() also accepts
// "keep", the old name of "fill".
PENSTOCK_API result<path_kind> parse_path_kind(std::string_view word);
PENSTOCK_API result<preference> parse_preference(std::string_view word);
PENSTOCK_API result<cache_use> parse_cache_use(std::string_view word);
PENSTOCK_API result<request_priority> parse_request_priority(std::string_view word);

// Parameters for NVIDIA's libcufile, by their numbers in its header (CUFileSizeTConfigParameter_t, CUFileBoolConfigParameter_t).
struct cufile_parameters {
  std::vector<std::pair<int, std::size_t>> sizes{};
  std::vector<std::pair<int, bool>> flags{};
};

struct engine_options {
  // The whole engine's pinned staging memory, in bytes; at least 36 MiB. No memory is pinned before the first device transfer.
  std::size_t pinned_budget_bytes = std::size_t{512} << 20;
  // The maximum total bytes that file::pin() may pin; 0: a quarter of the memory that this process may use.
  std::size_t pinned_file_budget_bytes = 0;
  // Worker threads for CPU copies, at most 64; 0: chosen from the number of cores that this process may use.
  unsigned lanes = 0;
  // The number of PCIe links that may load one GPU from the page cache: its own, and those of GPUs that can copy to it directly (NVLink);
  // the bytes pass through 32 MiB of memory on each of these. 1: only its own. More: at most this many; the engine creates a context on the
  // other GPUs. 0: the links of GPUs that this engine already uses, if there are enough cores to feed more than one link.
  unsigned links = 0;
  preference prefer = preference::automatic;
  path_kind path = path_kind::automatic;  // if not automatic, force this path; requests that it cannot serve fail
  cache_use cache = cache_use::automatic;
  // The maximum bytes per second for all requests together, plus a burst of 50 ms and one piece; 0: no limit. Requests are delayed,
  // background ones more than normal ones, and their deadlines keep running. Stream-ordered requests are counted but not delayed. With a
  // limit, files are not read ahead.
  std::uint64_t bytes_per_second = 0;
  bool use_cuda = true;      // false: behave as if there were no NVIDIA driver
  bool use_io_uring = true;  // false: behave as if a seccomp profile blocked io_uring
  // True: keep the counters in shared memory (/dev/shm/penstock-UID), where `penstock stats` reads them. False: in private memory.
  bool use_board = true;
  // True: print summary() and advice() on standard error when the engine is destroyed (for engine::shared(), when the process exits).
  bool log_summary = false;
  // The folder that caches objects from servers for all processes of this user on this machine, unless remote_options override it; empty:
  // no cache. An absolute path. The folder is created if it does not exist; its parent is not.
  std::string node_cache_dir;
  // The maximum bytes in that folder; the least recently used objects are removed. 0: leave a tenth of its file system free.
  std::uint64_t node_cache_bytes = 0;
  // NVIDIA's libcufile for the direct path: a full file name. Empty: search the usual places.
  std::string cufile_library;
  // Passed to that library before it is opened, once per process. Parameters that it rejects are ignored.
  cufile_parameters cufile;
  // The maximum bytes per call to that library, a multiple of 64 KiB; 0: 16 MiB.
  std::size_t gpu_direct_piece_bytes = 0;
  // True: each request is an NVTX range (domain "penstock"), shown by Nsight Systems and similar tools. No cost if no such tool is running.
  bool use_nvtx = false;
  // If set, every wait for a server (name lookup, connection, response, pause before a retry) calls this ten times per second, from several
  // threads. Once it returns true, waiting requests fail with errc::cancelled, and nothing more is sent except to abort an upload, which
  // takes at most 2 s. Intended for programs that exit on a signal.
  bool (*stop_requested)() noexcept = nullptr;

  // True: AWS profiles may start a program for credentials, regardless of remote_options::allow_credential_process.
  bool allow_credential_process = false;

  // Returns the defaults with these environment variables applied: PENSTOCK_PATH, PENSTOCK_PREFER, PENSTOCK_CACHE, PENSTOCK_LANES,
  // PENSTOCK_PINNED_MIB, PENSTOCK_PINNED_FILE_MIB, PENSTOCK_LINKS (auto, 1 to 8), PENSTOCK_BYTES_PER_SECOND, PENSTOCK_CUDA (0/1),
  // PENSTOCK_IO_URING (0/1), PENSTOCK_STATS (0/1: use_board), PENSTOCK_LOG (summary: log_summary), PENSTOCK_CACHE_DIR and
  // PENSTOCK_CACHE_BYTES (node_cache_dir and node_cache_bytes; a suffix K, M, G or T is allowed), PENSTOCK_NVTX (0/1: use_nvtx),
  // PENSTOCK_ALLOW_CREDENTIAL_PROCESS (0/1) and PENSTOCK_CUFILE_LIBRARY. Error: invalid_argument; the message includes the variable with a
  // malformed value.
  PENSTOCK_API static result<engine_options> from_environment();
};

struct open_options {
  bool read = true;
  bool write = false;
  bool create = false;    // with write: create the file (mode) if it does not exist
  bool truncate = false;  // with write: start from an empty file
  unsigned mode = 0644;
  // True: large aligned writes from device memory bypass the page cache (O_DIRECT) if the file system supports that. Other writes of more
  // than 128 KiB use the page cache, and the kernel drops the pages once they are on disk if it supports that (RWF_DONTCACHE, Linux 6.14).
  // Reads are not affected and use cached bytes.
  bool direct_writes = false;
  cache_use cache = cache_use::automatic;  // overrides the engine's setting for reads of this file
  // True: you guarantee that the file's bytes do not change while it is open here. For sequential blocking reads up to 16 MiB into device
  // memory, the following bytes are then read ahead from the page cache into pinned memory: up to 64 MiB and an eighth of
  // engine_options::pinned_budget_bytes. Not allowed with write. If the file changes nevertheless, such reads may return old bytes until
  // the change is noticed.
  bool immutable = false;
  std::uint64_t bytes_per_second = 0;  // like the engine's, for requests on this file; both limits apply
};

// An HTTP header to add to requests for an object.
struct remote_header {
  std::string name;
  std::string value;
};

// How to treat a URL. automatic: s3 for s3:// and Amazon's hosts, s3_presigned for URLs on those hosts with a signature in the query,
// webhdfs for paths that start with /webhdfs/v1/, otherwise http. s3_public: requests are not signed.
enum class remote_kind : std::uint8_t { automatic = 0, http, s3, s3_public, s3_presigned, webhdfs };

struct remote_options {
  remote_kind kind = remote_kind::automatic;
  // The object's size in bytes. If given, it is not requested from the server, and the first response to a read determines which version is
  // read.
  std::optional<std::uint64_t> size{};
  // For S3. Empty fields are filled in as the AWS tools do: from the environment, their profiles, and for credentials also from the
  // metadata service of the container or machine.
  std::string region{};
  std::string endpoint{};  // URL of a server other than Amazon's: objects are at ENDPOINT/BUCKET/KEY
  std::string profile{};
  std::string access_key_id{};
  std::string secret_access_key{};
  std::string session_token{};
  bool anonymous = false;                 // do not sign requests; never done unless you request it
  bool allow_credential_process = false;  // a profile may specify a program to run for credentials
  std::string user{};                     // for webhdfs
  bool overwrite = true;                  // for writes; false: keep an existing object and fail (EEXIST)
  // Replace engine_options::node_cache_dir and node_cache_bytes for this object. An empty folder: do not cache it.
  std::optional<std::string> cache_dir{};
  std::optional<std::uint64_t> cache_bytes{};
  // For http and https: added to each request to the URL's host, but not sent to hosts that it redirects to.
  std::vector<remote_header> headers{};
  // The maximum number of consecutive requests for a range without receiving a byte, and of requests for the size. 0: five, but the size is
  // not requested again after a timeout.
  unsigned attempts = 0;
  // Response statuses that are retried; nullopt: 408, 429, 500, 502, 503 and 504.
  std::optional<std::vector<int>> retried_statuses{};
  // Time within which a response must start, and within which at least 20 KiB of it must arrive; 0: 30 s and 20 s. There is no limit for
  // the whole response: slow progress is not a failure.
  std::chrono::milliseconds timeout{0};
  // Pause before a retry; doubles each time, up to eight times this value, or the pause that the server requests, within the same limit. 0:
  // random, initially between 0 and 100 ms.
  std::chrono::milliseconds retry_pause{0};
  std::shared_ptr<remote_retries> retries{};  // retries are recorded there
  // Called about every 50 ms by the thread that opens, looks up or lists objects, only during that call. If it returns true, the call fails
  // (cancelled). Must not throw.
  std::function<bool()> stop_requested{};
  // If a server does not support ranges, the whole object is read once, in order, and kept in memory or a temporary file, which is slow.
  // True: partial reads fail instead (unsupported).
  bool ranges_only = false;
  // For S3. requester_pays: the account that sends the requests is billed for them. addressing_style: "path" (ENDPOINT/BUCKET/KEY),
  // "virtual" (BUCKET.ENDPOINT/KEY), or "auto": virtual for Amazon, path elsewhere. use_fips, use_dualstack: which of Amazon's endpoints to
  // use. Values that are not set are looked up as the AWS tools do.
  std::optional<bool> requester_pays{};
  std::string addressing_style{};
  std::optional<bool> use_fips{};
  std::optional<bool> use_dualstack{};
  // False: use http for Amazon. An endpoint's URL specifies its own scheme.
  bool use_ssl = true;
  // AWS tool settings by their profile names, such as {"payload_signing_enabled", "true"}; they override the environment.
  // docs/guides/object-storage.md lists them. A setting that has no effect may have any value; an unknown name is an error.
  std::vector<remote_header> aws_settings{};
  // For writing S3 objects; if empty, the bucket's default applies.
  std::string content_type{};
  std::string server_side_encryption{};  // "AES256", "aws:kms" or "aws:kms:dsse"
  std::string sse_kms_key_id{};          // for "aws:kms" and "aws:kms:dsse"
  // 32 bytes. S3 encrypts the object with this key and requires it for each read (SSE-C). Sent only over https.
  std::string sse_customer_key{};
  std::string storage_class{};  // "STANDARD_IA" and others
  std::string acl{};            // "private", "bucket-owner-full-control" and others
  std::vector<remote_header> tags{};
};

// An entry of engine::list_remote().
struct remote_object {
  std::string url;
  std::optional<std::uint64_t> size;  // in bytes; nullopt for a common prefix of other objects
};

using deadline_clock = std::chrono::steady_clock;

struct io_options {
  // After this time no new piece of the request starts, and the request fails with errc::timed_out. The call first waits for pieces in
  // flight, so memory is not accessed after it returns. Reads from servers, and from file systems with a server, do not wait: their bytes
  // pass through staging memory and are dropped there.
  deadline_clock::time_point deadline = deadline_clock::time_point::max();
  path_kind path = path_kind::automatic;  // overrides the engine's
  preference prefer = preference::automatic;
  // Overrides the file's setting for reads. Stream-ordered requests have no options and use the file's setting.
  cache_use cache = cache_use::automatic;
  bool gpu_direct = true;  // false: do not use the paths direct and dma_buf
  unsigned links = 0;      // like the engine's; 0: use the engine's
  unsigned lanes = 0;      // split the request for at most this many lanes; 1: into the largest pieces; 0: for all of the engine's lanes
  request_priority priority = request_priority::normal;
  detail::cufile_request cufile{};  // for the cuFile layer
};

}  // namespace penstock
