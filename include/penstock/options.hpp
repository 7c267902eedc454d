// Options of an engine, of one file and of one request. Plain values; defaults suit most programs.
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

#include "penstock/status.hpp"

namespace penstock {

class remote_retries;

// The ways a byte can move between a file and memory, by number; further ones follow these. docs/internals/architecture.md tells when each
// is chosen.
enum class path_kind : std::uint8_t { automatic = 0, posix, staged, mapped, direct, dma_buf };

// What to spend: speed takes the fastest path, cpu the one with the fewest CPU seconds per byte.
enum class preference : std::uint8_t { automatic = 0, speed, cpu };

// What becomes of a file's bytes that a read into device memory has to fetch from the disk, since they are not in the page cache.
// keep: they are read through the page cache, in file order and by few threads, so that the next read finds them there. bypass: they are
// read past it (O_DIRECT) where the file system can, so that nothing new enters it. automatic ("auto"): kept where memory has room for the
// whole file, and reading past the page cache has not turned out to be faster here; small reads at random, and descriptors that were
// adopted with O_DIRECT, go past it. What is in the page cache is read from there either way, but under bypass small reads of which a part
// is not in there go past it as a whole. Reads of up to 128 KiB whose caller waits go through the page cache unless bypass is asked for,
// and so do all reads of a disk into host memory. A file system whose server answers late is read past the page cache unless keep is asked
// for, into host memory too. Under bypass pieces of more than 128 KiB that go through it all the same do not stay there, where the kernel
// can see to that (RWF_DONTCACHE, Linux 6.14; ext4, XFS and some others).
enum class cache_use : std::uint8_t { automatic = 0, keep, bypass };

// Which requests go first. background is for those that nobody waits for soon, such as blocks that are written behind. Their pieces have a
// few threads and a share of the staging memory to themselves, and while normal requests are under way on the file system, or have been up
// to a millisecond ago, one piece is begun each 20 ms; so they end whatever else there is to do. A piece that is being carried is never
// interrupted. Stream-ordered requests are normal ones.
enum class request_priority : std::uint8_t { normal = 0, background };

PENSTOCK_API std::string_view to_string(path_kind path) noexcept;
PENSTOCK_API std::string_view to_string(preference prefer) noexcept;
PENSTOCK_API std::string_view to_string(cache_use cache) noexcept;
PENSTOCK_API std::string_view to_string(request_priority priority) noexcept;
// Of all paths, by number; the first is "automatic".
PENSTOCK_API std::vector<std::string_view> path_names();
// Inverse of to_string; errc::invalid_argument names the word and lists the right ones.
PENSTOCK_API result<path_kind> parse_path_kind(std::string_view word);
PENSTOCK_API result<preference> parse_preference(std::string_view word);
PENSTOCK_API result<cache_use> parse_cache_use(std::string_view word);
PENSTOCK_API result<request_priority> parse_request_priority(std::string_view word);

// Parameters of NVIDIA's libcufile, by their numbers in its header (CUFileSizeTConfigParameter_t, CUFileBoolConfigParameter_t).
struct cufile_parameters {
  std::vector<std::pair<int, std::size_t>> sizes{};
  std::vector<std::pair<int, bool>> flags{};
};

struct engine_options {
  // Pinned staging memory of the whole engine, in bytes; nothing is pinned before the first device transfer.
  // 36 MiB or more.
  std::size_t pinned_budget_bytes = std::size_t{512} << 20;
  // What file::pin() may pin in all, in bytes; 0: a quarter of the memory that this process may use.
  std::size_t pinned_file_budget_bytes = 0;
  // Worker threads for copies through the CPU; 0 chooses from the cores this process may use. At most 64.
  unsigned lanes = 0;
  // PCIe links over which one GPU is filled from the page cache: its own, and those of GPUs that copy to it straight (NVLink), whose memory
  // the bytes pass through, 32 MiB of each. 1: its own. More: at most so many, for which a context is made on the others. 0: of those that
  // this engine uses anyway, where there are cores enough to feed more than one.
  unsigned links = 0;
  preference prefer = preference::automatic;
  path_kind path = path_kind::automatic;  // not automatic: force this one; requests it cannot serve fail
  cache_use cache = cache_use::automatic;
  // Requests of all files together move at most so many bytes a second, besides what 50 ms let through and one piece; 0: no limit. They are
  // delayed, normal ones less than those in the background, and their deadlines hold meanwhile. Stream-ordered requests are not delayed,
  // but counted, so that others are. No file is read ahead.
  std::uint64_t bytes_per_second = 0;
  bool use_cuda = true;      // false: behave as on a machine without an NVIDIA driver
  bool use_io_uring = true;  // false: behave as under a seccomp profile without io_uring
  // True: counters lie in shared memory, where `penstock stats` sees them (/dev/shm/penstock-UID). False: in memory of the engine's own.
  bool use_board = true;
  // True: when the engine ends, or the process where it is engine::shared(), summary() and advice() are printed on standard error.
  bool log_summary = false;
  // What comes from servers is kept in this folder, for all processes of this user on this machine, unless remote_options say otherwise;
  // empty: nowhere. An absolute path; the folder is made where it is missing, and the one above it is not.
  std::string node_cache_dir;
  // What the folder may hold, in bytes; then what was used longest ago goes. 0: as much as leaves a tenth of its file system free.
  std::uint64_t node_cache_bytes = 0;
  // NVIDIA's libcufile for the direct path: a full file name. Empty searches the usual places.
  std::string cufile_library;
  // Handed to that library before it is opened, which it is once; what it refuses, it goes without.
  cufile_parameters cufile;
  // The most bytes of one call of that library, a multiple of 64 KiB; 0: 16 MiB.
  std::size_t gpu_direct_piece_bytes = 0;
  // True: each request is a range of NVTX (domain "penstock"), which tools such as Nsight Systems show. It costs nothing where no such tool
  // is at work.
  bool use_nvtx = false;
  // If it is set, every wait for a server (for names, connections, answers, and between two tries) asks it ten times a second, from several
  // threads. Once it returns true, what waits fails with errc::cancelled, and nothing more is sent except to abort an upload, which takes
  // at most 2 s. For programs that a signal ends.
  bool (*stop_requested)() noexcept = nullptr;

  // True: profiles of the AWS tools may have a program started for credentials, whatever remote_options::allow_credential_process says.
  bool allow_credential_process = false;

  // The defaults with PENSTOCK_PATH, PENSTOCK_PREFER, PENSTOCK_CACHE, PENSTOCK_LANES, PENSTOCK_PINNED_MIB, PENSTOCK_PINNED_FILE_MIB,
  // PENSTOCK_LINKS (auto, 1 to 8), PENSTOCK_BYTES_PER_SECOND, PENSTOCK_CUDA (0/1), PENSTOCK_IO_URING (0/1), PENSTOCK_STATS (0/1:
  // use_board), PENSTOCK_LOG (summary: log_summary), PENSTOCK_CACHE_DIR and PENSTOCK_CACHE_BYTES (node_cache_dir and node_cache_bytes,
  // which may end with K, M, G or T), PENSTOCK_NVTX (0/1: use_nvtx), PENSTOCK_ALLOW_CREDENTIAL_PROCESS (0/1) and
  // PENSTOCK_CUFILE_LIBRARY applied. A malformed value is errc::invalid_argument naming the variable.
  PENSTOCK_API static result<engine_options> from_environment();
};

struct open_options {
  bool read = true;
  bool write = false;
  bool create = false;    // with write: create the file (mode) when it does not exist
  bool truncate = false;  // with write: start from an empty file
  unsigned mode = 0644;
  // True: large aligned writes from device memory bypass the page cache (O_DIRECT) where the file system can. Other writes of more than 128
  // KiB go through it, in which they do not stay once they are on the disk, where the kernel can see to that (RWF_DONTCACHE, Linux 6.14).
  // Reads decide by residency either way.
  bool direct_writes = false;
  cache_use cache = cache_use::automatic;  // overrides the engine's, for reads of this file
  // True: nobody changes the bytes of the file while it is open here. Then blocking reads of up to 16 MiB into device memory that each
  // begin where the last one ended find what is in the page cache in pinned memory already: up to 64 MiB, and up to an eighth of
  // engine_options::pinned_budget_bytes, are read ahead of them. Not with write. Of a file that is changed all the same such reads may give
  // old bytes, until that is noticed.
  bool immutable = false;
  std::uint64_t bytes_per_second = 0;  // as the engine's, for requests of this file; both limits hold
};

// Of objects on servers, which engine::open() takes by their URL.
struct remote_header {
  std::string name;
  std::string value;
};

// What a URL stands for. automatic: s3 for s3:// and for hosts of Amazon's, s3_presigned for such with a signature in their query, webhdfs
// for paths that begin with /webhdfs/v1/, else http. s3_public: requests are not signed.
enum class remote_kind : std::uint8_t { automatic = 0, http, s3, s3_public, s3_presigned, webhdfs };

struct remote_options {
  remote_kind kind = remote_kind::automatic;
  // Bytes; where it is given, the server is not asked, and the first answer to a read says which version is read.
  std::optional<std::uint64_t> size{};
  // Of S3: what is empty is looked for where the AWS tools do: in the environment, in their profiles, and for credentials also at the
  // container's or the machine's own service.
  std::string region{};
  std::string endpoint{};  // URL of a server that is not Amazon's: objects lie at ENDPOINT/BUCKET/KEY
  std::string profile{};
  std::string access_key_id{};
  std::string secret_access_key{};
  std::string session_token{};
  bool anonymous = false;                 // requests are not signed, which never happens unasked
  bool allow_credential_process = false;  // a profile may name a program that is started for its credentials
  std::string user{};                     // of webhdfs
  bool overwrite = true;                  // of an object that is written; false: one that is there stays, and writing fails (EEXIST)
  // Instead of engine_options::node_cache_dir and node_cache_bytes; an empty folder: what is read of this object is not kept.
  std::optional<std::string> cache_dir{};
  std::optional<std::uint64_t> cache_bytes{};
  // Of http and https: added to each request to the host of the URL, and to no other to which it sends its reader.
  std::vector<remote_header> headers{};
  // Patience with the server. A piece of the object is asked for so often without a byte of it in between, and so is how large it is; 0:
  // five times, and how large it is not again where there was no answer in time.
  unsigned attempts = 0;
  // Statuses of answers after which the server is asked again; nothing: 408, 429, 500, 502, 503 and 504.
  std::optional<std::vector<int>> retried_statuses{};
  // In which an answer has to begin, and in which 20 KiB of it have to come; 0: 30 s and 20 s. Not of an answer as a whole: a slow one is
  // none that has failed.
  std::chrono::milliseconds timeout{0};
  // Before what failed is asked for again; twice as long each time, up to eight times, or what the server asks for up to that. 0: drawn at
  // random, from 0 up to 100 ms at first.
  std::chrono::milliseconds retry_pause{0};
  std::shared_ptr<remote_retries> retries{};  // what is asked again is noted there
  // Asked about every 50 ms by the thread that opens, finds or lists objects, and only while that call lasts. true: it ends (cancelled).
  // Must not throw.
  std::function<bool()> stop_requested{};
  // If a server serves no ranges, the whole object is read once, in order, and kept in memory or in a temporary file, which is slow. True:
  // reads of a part of it fail instead (unsupported).
  bool ranges_only = false;
  // Of S3. requester_pays: the account that sends the requests pays for them. addressing_style: "path" (ENDPOINT/BUCKET/KEY), "virtual"
  // (BUCKET.ENDPOINT/KEY), or "auto": virtual at Amazon, path elsewhere. use_fips, use_dualstack: which of Amazon's endpoints are asked.
  // What is not given is looked for where the AWS tools do.
  std::optional<bool> requester_pays{};
  std::string addressing_style{};
  std::optional<bool> use_fips{};
  std::optional<bool> use_dualstack{};
  // false: Amazon is asked over http. The URL of an endpoint says itself whether it is https.
  bool use_ssl = true;
  // Settings of the AWS tools by their names in a profile, such as {"payload_signing_enabled", "true"}; they come before the environment.
  // docs/guides/object-storage.md lists them. A setting that has no effect may have any value; an unknown name is an error.
  std::vector<remote_header> aws_settings{};
  // Of an object of S3 that is written; if it is empty, the bucket decides.
  std::string content_type{};
  std::string server_side_encryption{};  // "AES256", "aws:kms" or "aws:kms:dsse"
  std::string sse_kms_key_id{};          // for the latter two
  // 32 bytes. S3 encrypts what is written with this key and needs it for each read (SSE-C). It is sent over https only.
  std::string sse_customer_key{};
  std::string storage_class{};  // "STANDARD_IA" and others
  std::string acl{};            // "private", "bucket-owner-full-control" and others
  std::vector<remote_header> tags{};
};

// What engine::list_remote() finds.
struct remote_object {
  std::string url;
  std::optional<std::uint64_t> size;  // in bytes; none of what other objects' URLs begin with
};

using deadline_clock = std::chrono::steady_clock;

struct io_options {
  // After this no new piece of the request is started, and what is still queued ends, with errc::timed_out; pieces under way are finished
  // first, so memory is quiet on return. Reads of objects on servers, and of files whose file system has a server, do not wait for these:
  // their bytes pass through staging memory, in which they are left behind.
  deadline_clock::time_point deadline = deadline_clock::time_point::max();
  path_kind path = path_kind::automatic;  // overrides the engine's
  preference prefer = preference::automatic;
  // Overrides the file's, for reads. Stream-ordered requests have no options: the file's holds for them.
  cache_use cache = cache_use::automatic;
  bool gpu_direct = true;  // false: do not consider the paths direct and dma_buf
  // A transfer of device memory is GPU-direct by NVIDIA's library (the path direct), but for the unaligned edges of a write, or ends with
  // errc::unsupported. Overrides path there. Stream-ordered requests do not ask.
  bool only_gpu_direct = false;
  unsigned links = 0;  // as the engine's, which 0 leaves it to
  unsigned lanes = 0;  // cut as if there were so many at most; 1: into pieces as large as there are. 0: as many as the engine has
  request_priority priority = request_priority::normal;
  // A write from device memory first waits, on the caller's thread, for the work queued before on the default stream of its context: for
  // programs that count on it. Otherwise only the caller knows which streams make the bytes.
  bool after_default_stream = false;
};

}  // namespace penstock
