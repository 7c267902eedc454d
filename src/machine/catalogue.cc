// Every finding there is. `penstock check --findings` prints them.
#include "machine/finding.hpp"

namespace penstock::machine {

namespace {

using enum verdict;
constexpr auto on_platform = group::platform;

constexpr known_finding entries[] = {
    // --- GPUs
    {"gpu.found", on_platform, ok, "{name}, driver {driver}, {bar1} of BAR1, NUMA node {node}"},
    {"gpu.none", on_platform, ok, "no NVIDIA GPU: bytes go to memory of the host, and to the device host:0"},
    {"gpu.no_driver", on_platform, broken, "an NVIDIA GPU without a driver: the kernel module nvidia is not loaded",
     "install NVIDIA's driver; in a container: start it with --gpus all; then look at nvidia-smi"},
    {"gpu.other_driver", on_platform, slow, "the kernel has given this GPU to {driver}: CUDA does not see it",
     "bind it to NVIDIA's driver, unless a virtual machine is to have it"},
    {"gpu.no_node", on_platform, broken, "the driver serves {name}, but {file} is missing",
     "in a container: start it with --gpus all; elsewhere: nvidia-modprobe -c 0 -u"},
    {"gpu.small_bar1", on_platform, slow, "{name} shows {bar1} of its memory to other devices (BAR1): GPUDirect maps no more at a time",
     "switch on Above 4G Decoding and Resizable BAR in the firmware"},
    {"gpu.wsl", on_platform, slow, "this is WSL: Windows owns the GPU, and there is no GPUDirect, neither for drives nor for network cards",
     "nothing for the staged path; for GPUDirect run Linux on the machine itself"},
    // --- links
    {"link.full", on_platform, ok, "{what}: PCIe at {now}, all that it and its slot can"},
    {"link.narrow", on_platform, slow, "{what}: PCIe at {now}, and it can {can}: lanes are missing",
     "reseat the card, or use a slot with x{lanes}; lspci -vv -s {address} shows LnkSta"},
    {"link.low_generation", on_platform, slow, "{what}: PCIe at {now}, and it can {can}: the link has been trained at a lower rate",
     "reseat the card; look for the link speed of the slot in the firmware"},
    {"link.slot", on_platform, slow, "{what}: it can {can}, and the port {port} above it {slot}", "use a faster slot"},
    {"link.idle", on_platform, unknown, "{what}: PCIe at {now} of {can}; a GPU that idles lowers its rate",
     "look again while it copies (penstock bench --quick)"},
    // --- between devices
    {"acs.off", on_platform, ok, "no switch above a GPU, network card or drive sends their traffic up to the CPU (ACS is off)"},
    {"acs.no_switch", on_platform, ok, "there is no PCIe switch above a GPU, so none redirects its traffic (ACS)"},
    {"acs.on", on_platform, slow, "ACS is on in this switch port, above {below}: traffic between devices goes up through the CPU",
     "setpci -s {port} ECAP_ACS+6.w=0000 as root, at each boot; or switch ACS off in the firmware"},
    {"acs.hidden", on_platform, unknown, "whether ACS is on in the PCIe switches: needs root", "sudo penstock check"},
    {"iommu.off", on_platform, ok, "the IOMMU is off"},
    {"iommu.passthrough", on_platform, ok, "the IOMMU passes addresses through ({how})"},
    {"iommu.needed", on_platform, ok, "the IOMMU is on, as GPUDirect needs it on Grace"},
    {"iommu.on", on_platform, slow, "the IOMMU translates addresses ({how}): traffic between devices goes through the CPU's root ports",
     "iommu=off on the kernel's command line (intel_iommu=off, amd_iommu=off); iommu=pt where the vendor of the machine supports it"},
    {"iommu.unknown", on_platform, unknown, "the IOMMU is on, and the kernel does not tell what it does ({how})",
     "as root: cat /sys/kernel/iommu_groups/*/type"},
    {"nic.near", on_platform, ok, "{why}"},
    {"nic.far", on_platform, slow, "{why}", "put a network card under the PCIe switch of the GPU, or into a slot of its NUMA node"},
    {"nic.none", on_platform, ok, "no RDMA network card: pipes between machines use tcp"},
    {"nic.down", on_platform, slow, "{why}", "ibstat; check cable, switch and subnet manager; ip link set dev INTERFACE up"},
    {"nic.port", on_platform, ok, "port {port} is active: {mode}, {rate}"},
    {"numa.one", on_platform, ok, "one NUMA node: nothing is far"},
    {"numa.drive_near", on_platform, ok, "the drives {drives} are of its NUMA node, {node}"},
    {"numa.drive_far", on_platform, slow, "no NVMe drive is of its NUMA node, {node}: files come through the link between the processors",
     "put data onto a drive of that node, or use a GPU of node {nodes}"},
    {"numa.unknown", on_platform, unknown, "the firmware does not tell on which NUMA node it is",
     "switch on NUMA in the firmware (SRAT); in a virtual machine: pin it and pass the topology on"},
    // --- kernel
    {"cachestat.works", on_platform, ok, "the kernel tells what of a file is in the page cache (cachestat)"},
    {"cachestat.missing", on_platform, slow, "the kernel has no cachestat: what is in the page cache is sampled", "Linux 6.5 or later"},
    {"cachestat.denied", on_platform, slow, "cachestat is denied ({why}): what is in the page cache is sampled",
     "a seccomp profile that allows cachestat"},
    {"io_uring.works", on_platform, ok, "io_uring is allowed"},
    {"io_uring.missing", on_platform, slow, "the kernel has no io_uring: cold files are read by threads",
     "Linux 5.6 or later, with CONFIG_IO_URING"},
    {"io_uring.disabled", on_platform, slow,
     "io_uring is switched off (kernel.io_uring_disabled = {value}): cold files are read by threads", "sysctl kernel.io_uring_disabled=0"},
    {"io_uring.denied", on_platform, slow, "io_uring is denied ({why}): cold files are read by threads",
     "a seccomp profile that allows io_uring_setup, io_uring_enter and io_uring_register"},
    {"memfd.works", on_platform, ok, "shared memory without a name can be made (memfd_create)"},
    {"memfd.denied", on_platform, broken, "memfd_create fails ({why}): pipes between processes share no memory",
     "Linux 3.17 or later, and a seccomp profile that allows memfd_create"},
    {"vm_readv.works", on_platform, ok, "processes may read each other's memory (process_vm_readv)"},
    {"vm_readv.denied", on_platform, slow, "processes may not read each other's memory ({why}): pipes copy through shared memory",
     "one pid namespace, kernel.yama.ptrace_scope of 0, a seccomp profile that allows process_vm_readv"},
    {"kernel.unasked", on_platform, unknown, "which system calls are allowed: this is a copy of another machine's files",
     "run it on that machine"},
    // --- peer-to-peer
    {"p2pdma.ready", on_platform, ok,
     "NVIDIA's driver shows GPU memory to drives (P2PDMA: RMForceStaticBar1=1), and the kernel can use it"},
    {"p2pdma.unused", on_platform, ok, "the kernel can do P2PDMA; NVIDIA's driver is not set up for it, and nvidia-fs serves in its place"},
    {"p2pdma.driver", on_platform, slow, "the kernel can do P2PDMA, and NVIDIA's driver is not set up for it",
     "options nvidia NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\" in /etc/modprobe.d, with the open kernel "
     "modules, on A100, A40, L4, L40S, H100, H200, B100, B200, B300"},
    {"p2pdma.kernel", on_platform, slow, "the kernel is built without P2PDMA (CONFIG_PCI_P2PDMA)",
     "Linux 6.2 or later with CONFIG_PCI_P2PDMA=y, or nvidia-fs"},
    {"p2pdma.unknown", on_platform, unknown,
     "whether the kernel is built with P2PDMA: neither /boot/config-{release} nor /proc/kallsyms tells",
     "zgrep PCI_P2PDMA /proc/config.gz"},
    {"p2pdma.multipath", on_platform, broken, "the driver is set up for P2PDMA, and NVMe multipath is on, which rules it out",
     "options nvme_core multipath=N in /etc/modprobe.d, then update-initramfs -u and a reboot"},
    {"nvidia_fs.loaded", on_platform, ok, "nvidia-fs {version} is loaded; it serves {drivers}"},
    {"nvidia_fs.missing", on_platform, slow, "neither nvidia-fs nor P2PDMA: drives do not reach GPU memory (GPUDirect Storage)",
     "modprobe nvidia-fs (package nvidia-fs or nvidia-gds), or a driver set up for P2PDMA; Penstock does without either"},
    {"nvidia_fs.no_nodes", on_platform, broken, "nvidia-fs is loaded, but there is no /dev/nvidia-fs0: programs cannot reach it",
     "in a container: --device /dev/nvidia-fs0 and its neighbours, or --gpus all with NVIDIA_GDS=enabled; elsewhere: reload the module"},
    {"nvidia_fs.errors", on_platform, broken, "nvidia-fs counts failed transfers: {errors}",
     "dmesg | grep nvidia-fs; log level TRACE in cufile.json"},
    {"peermem.works", on_platform, ok, "network cards reach GPU memory ({how})"},
    {"peermem.missing", on_platform, slow, "network cards do not reach GPU memory: nvidia_peermem is not loaded",
     "modprobe nvidia_peermem, or the open kernel modules of NVIDIA's driver, which lend memory by dma-buf"},
    // --- containers and limits
    {"container.none", on_platform, ok, "not in a container"},
    {"container.found", on_platform, ok, "in a container ({what}), seccomp {seccomp}"},
    {"container.no_udev", on_platform, slow,
     "/run/udev is missing: NVIDIA's libcufile refuses local files without it (error 5030); Penstock does not need it",
     "docker run -v /run/udev:/run/udev:ro"},
    {"cpu.quota", on_platform, slow,
     "the cgroup allows {cores} cores: copies through the CPU move about 5 GB/s each, and a GPU's link takes 50",
     "docker run --cpus=10, or more; resources.limits.cpu in Kubernetes"},
    {"cpu.free", on_platform, ok, "the cgroup allows {cores} cores"},
    {"memory.limit", on_platform, slow, "the cgroup allows {bytes} of memory, and the page cache counts: files do not stay in it",
     "docker run --memory with room for the files that are read again"},
    {"memory.free", on_platform, ok, "memory of the cgroup: {bytes}"},
    {"memlock.low", on_platform, slow,
     "{bytes} of memory may be locked (RLIMIT_MEMLOCK): fewer pinned slabs than the 276 MiB that full speed takes",
     "ulimit -l unlimited; docker run --ulimit memlock=-1"},
    {"memlock.enough", on_platform, ok, "locked memory: {bytes}"},
    {"nofile.low", on_platform, slow, "{count} descriptors may be open (RLIMIT_NOFILE): batches over many files run out",
     "ulimit -n 65536"},
    {"nofile.enough", on_platform, ok, "open descriptors: {count}"},
};

}  // namespace

std::span<const known_finding> all_findings() noexcept { return entries; }

}  // namespace penstock::machine
