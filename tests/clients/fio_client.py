"""fio and its libcufile engine: jobs of all patterns, sizes and ways to open, which fio verifies itself."""

import itertools
import pathlib
import re

from harness import Client, Download, Failed, Place, check_used

SOURCE = Download(
    "https://deb.debian.org/debian/pool/main/f/fio/fio_3.33.orig.tar.gz",
    "d2410e13e0f379d061d077cc5ae325835bb7c6186aa7bafc1df954cbc9b014fc",
)

# Each job writes its file and reads it back with checksums. 20 KiB is not a power of two, and 4608 bytes are not a multiple of a page.
PATTERNS = ("write", "randwrite", "rw", "randrw")
SIZES = (("4608", 0), ("4k", 1), ("20k", 1), ("64k", 0), ("1m", 1))
JOBS = [f"--rw={pattern} --bs={size} --direct={direct} --cuda_io=cufile" for pattern, (size, direct) in itertools.product(PATTERNS, SIZES)]
JOBS += ["--rw=write --bs=64k --direct=1 --cuda_io=cufile --numjobs=8", "--rw=randwrite --bs=16k --direct=0 --cuda_io=cufile --numjobs=8 --fsync=4"]
JOBS += ["--rw=write --bs=64k --direct=0 --cuda_io=posix"]


def build(place: Place, client: Client) -> pathlib.Path:
    folder = place.folder(client)
    home = place.cuda_home(client)
    tree = place.sources(client, SOURCE, folder / "fio")
    if not (tree / "fio").exists():
        configure = ["./configure", "--enable-libcufile", f"--cc={place.cc}", f"--extra-cflags=-I{home}/include"]
        place.build(client, configure, ["make", f"-j{place.jobs}", "fio"], cwd=tree, environ={"LDFLAGS": place.link_flags(client)})
    return tree / "fio"


def run(place: Place, client: Client) -> str:
    program = build(place, client)
    if "libcufile" not in place.run_program(client, [program, "--enghelp"]):
        raise Failed("fio was built without its libcufile engine")
    # 4.5 MiB is a multiple of every size except 20 KiB, whose last block fio skips.
    always = ["--ioengine=libcufile", "--thread", "--gpu_dev_ids=0", "--size=4718592"]
    always += ["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0"]
    lines = []
    for number, job in enumerate(JOBS):
        data = place.data(client)
        command = [program, f"--name=job{number}", f"--directory={data}", *always, *job.split()]
        output = place.run_program(client, command)
        if set(re.findall(r"err= *(\d+)", output)) != {"0"}:
            raise Failed(f"{job}: an error, or no result\n{output}")
        if "cufile" in job.split("--cuda_io=")[1]:
            check_used(output)
        lines.append(f"OK {job.replace('--', '')}")
    return "\n".join([*lines, f"{len(JOBS)} of {len(JOBS)} jobs, {place.memory}"])
