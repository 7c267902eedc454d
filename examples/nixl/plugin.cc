// A plug-in for NIXL, "PENSTOCK", which copies between host or GPU memory and files. Experimental: not yet run on a GPU.
//
// NIXL's packages have no headers, and a plug-in must match NIXL's release, so build this one from a checkout of NIXL at the release that
// you use:
//   g++ -std=c++20 -O2 -fPIC -shared -fvisibility=hidden examples/nixl/plugin.cc -o plugins/libplugin_PENSTOCK.so
//       -I nixl/src/api/cpp -I nixl/src/utils -I nixl/src/core/telemetry $(pkg-config --cflags --libs penstock)
//   NIXL_PLUGIN_DIR=plugins python3 program.py     and in the program: agent.create_backend("PENSTOCK")
// Files are registered by their descriptors or paths, as for NIXL's plug-in POSIX.

// NIXL's headers log through Abseil, whose headers must then match too. This replaces the header that includes them.
#define __NIXL_LOG_H
#include <iostream>
#define NIXL_ERROR std::cerr << "\npenstock: "
#define NIXL_ASSERT(condition) static_cast<void>(0)

#include <backend/backend_engine.h>
#include <backend/backend_plugin.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/engine.hpp"

namespace {

constexpr std::array<std::pair<std::string_view, int>, 4> path_options{
    {{"direct", O_DIRECT}, {"sync", O_SYNC}, {"noatime", O_NOATIME}, {"create", O_CREAT}}};

nixl_mem_list_t memory_kinds() { return {DRAM_SEG, VRAM_SEG, FILE_SEG}; }

nixl_status_t failed(std::string_view what, const penstock::status& why) {
  NIXL_ERROR << what << ": " << why.message() << "\n";
  return NIXL_ERR_BACKEND;
}

struct named_file {
  std::string path;
  int flags;
};

// Returns the file that NIXL's text names: "ro" or "rw", options (each after a comma), a colon and a path. Returns nothing for other text.
std::optional<named_file> path_of(const std::string& text) {
  const auto colon = text.find(':');
  if (colon == std::string::npos || colon + 1 == text.size()) return std::nullopt;
  std::istringstream words(text.substr(0, colon));
  std::string word;
  std::getline(words, word, ',');
  if (word != "ro" && word != "rw") return std::nullopt;
  int flags = word == "ro" ? O_RDONLY : O_RDWR;
  while (std::getline(words, word, ',')) {
    const auto known = std::ranges::find(path_options, word, &std::pair<std::string_view, int>::first);
    if (known == path_options.end()) return std::nullopt;
    flags |= known->second;
  }
  return named_file{text.substr(colon + 1), flags};
}

// A registered file.
struct file_entry final : nixlBackendMD {
  explicit file_entry(penstock::file opened) : nixlBackendMD(true), file(std::move(opened)) {}
  penstock::file file;
};

// A transfer, which can be posted several times.
struct transfer final : nixlBackendReqH {
  ~transfer() override { stop(); }
  // Waits until the transfer no longer uses its memory.
  void stop() {
    running.cancel();
    (void)running.wait();
  }
  std::vector<penstock::io_request> requests;
  penstock::batch running;
};

class penstock_backend final : public nixlBackendEngine {
 public:
  explicit penstock_backend(const nixlBackendInitParams* with) : nixlBackendEngine(with) {
    auto made = penstock::engine::shared();
    if (made) {
      engine_.emplace(*std::move(made));
    } else {
      (void)failed("cannot start", made.error());
      initErr = true;
    }
  }

  [[nodiscard]] bool supportsRemote() const override { return false; }
  [[nodiscard]] bool supportsLocal() const override { return true; }
  [[nodiscard]] bool supportsNotif() const override { return false; }
  [[nodiscard]] nixl_mem_list_t getSupportedMems() const override { return memory_kinds(); }

  nixl_status_t registerMem(const nixlBlobDesc& what, const nixl_mem_t& kind, nixlBackendMD*& out) override {
    out = nullptr;
    if (kind == DRAM_SEG || kind == VRAM_SEG) return NIXL_SUCCESS;  // Penstock finds out what a pointer is
    if (kind != FILE_SEG) return NIXL_ERR_NOT_SUPPORTED;
    auto opened = opened_file(what);
    if (!opened) return failed("cannot register a file", opened.error());
    out = new file_entry(*std::move(opened));
    return NIXL_SUCCESS;
  }

  nixl_status_t deregisterMem(nixlBackendMD* entry) override {
    delete entry;
    return NIXL_SUCCESS;
  }

  nixl_status_t connect(const std::string&) override { return NIXL_SUCCESS; }
  nixl_status_t disconnect(const std::string&) override { return NIXL_SUCCESS; }
  nixl_status_t unloadMD(nixlBackendMD*) override { return NIXL_SUCCESS; }
  nixl_status_t loadLocalMD(nixlBackendMD* in, nixlBackendMD*& out) override {
    out = in;
    return NIXL_SUCCESS;
  }

  nixl_status_t prepXfer(const nixl_xfer_op_t& way, const nixl_meta_dlist_t& memory, const nixl_meta_dlist_t& files,
                         const std::string& agent, nixlBackendReqH*& out, const nixl_opt_b_args_t*) const override {
    const bool is_memory = memory.getType() == DRAM_SEG || memory.getType() == VRAM_SEG;
    if (agent != localAgent || !is_memory || files.getType() != FILE_SEG || memory.descCount() != files.descCount())
      return NIXL_ERR_INVALID_PARAM;
    auto made = std::make_unique<transfer>();
    for (int i = 0; i < memory.descCount(); ++i) {
      const auto* entry = static_cast<const file_entry*>(files[i].metadataP);
      if (entry == nullptr || memory[i].len != files[i].len) return NIXL_ERR_INVALID_PARAM;
      made->requests.push_back({.target = &entry->file,
                                .memory = reinterpret_cast<void*>(memory[i].addr),
                                .length = memory[i].len,
                                .offset = static_cast<std::int64_t>(files[i].addr),
                                .is_write = way == NIXL_WRITE});
    }
    out = made.release();
    return NIXL_SUCCESS;
  }

  nixl_status_t postXfer(const nixl_xfer_op_t&, const nixl_meta_dlist_t&, const nixl_meta_dlist_t&, const std::string&,
                         nixlBackendReqH*& handle, const nixl_opt_b_args_t*) const override {
    auto& posted = static_cast<transfer&>(*handle);
    posted.running = engine_->submit(posted.requests);
    return NIXL_IN_PROG;
  }

  nixl_status_t checkXfer(nixlBackendReqH* handle) const override {
    auto& posted = static_cast<transfer&>(*handle);
    if (!posted.running.done()) return NIXL_IN_PROG;
    const auto outcomes = posted.running.wait();
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      if (!outcomes[i].ok()) return failed("a transfer failed", outcomes[i].error);
      if (outcomes[i].bytes_done < posted.requests[i].length)
        return failed("a transfer failed", {penstock::errc::io, "the file ends before the requested range"});
    }
    return NIXL_SUCCESS;
  }

  nixl_status_t releaseReqH(nixlBackendReqH* handle) const override {
    delete handle;
    return NIXL_SUCCESS;
  }

 private:
  [[nodiscard]] penstock::result<penstock::file> opened_file(const nixlBlobDesc& what) const {
    const auto named = path_of(what.metaInfo);
    if (!named) return engine_->adopt(static_cast<int>(what.devId), {.duplicate = true});
    const int descriptor = ::open(named->path.c_str(), named->flags | O_CLOEXEC, 0644);
    if (descriptor < 0) return penstock::status::from_errno(errno, "open " + named->path);
    auto opened = engine_->adopt(descriptor, {.name = named->path, .duplicate = true});
    ::close(descriptor);
    return opened;
  }

  std::optional<penstock::engine> engine_;
};

}  // namespace

extern "C" NIXL_PLUGIN_EXPORT nixlBackendPlugin* nixl_plugin_init() {
  return nixlBackendPluginCreator<penstock_backend>::create(NIXL_PLUGIN_API_VERSION, "PENSTOCK", "0.1.0", {}, memory_kinds());
}

extern "C" NIXL_PLUGIN_EXPORT void nixl_plugin_fini() {}
