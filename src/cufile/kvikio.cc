// KvikIO uses cuFile only if /run/udev exists, because NVIDIA's library identifies drives by the udev database. Penstock's does not.
// `penstock run` preloads this library, so KvikIO then calls this function instead of its own, kvikio::run_udev_readable().
extern "C" __attribute__((visibility("default"))) bool penstock_kvikio_udev_readable() noexcept __asm__("_ZN6kvikio17run_udev_readableEv");

bool penstock_kvikio_udev_readable() noexcept { return true; }
