"""elbencho with GPUDirect Storage: files in blocks of several sizes, written, read and checked by its --verify."""

import pathlib
import re

from harness import Client, Download, Failed, Place, Source, check_used

BOOST = "https://deb.debian.org/debian/pool/main/b/boost1.74"
SOURCE = Source("breuner/elbencho", "d085b194aeb6bb79fbf47861d32ddeb48cd9bb2c")
WEB_SERVER = Source("eidheim/Simple-Web-Server", "35ebb10782507f887802df64a2b6bfc8b427d81f")
SCREEN = Source("ArthurSonzogni/FTXUI", "v7.0.0")
LIBRARIES = (
    Download(f"{BOOST}/libboost1.74-dev_1.74.0+ds1-21_amd64.deb", "ba14fe04d7f138f874bd3ab3a20c4fd1e9f654e271449b8f3e48d20f942dbb93"),
    Download(f"{BOOST}/libboost-program-options1.74-dev_1.74.0+ds1-21_amd64.deb", "a1bf3a316247e8bcd0b2eaad021a006e3aab3df4904044f16c306d5eaa306c86"),
    Download(f"{BOOST}/libboost-thread1.74-dev_1.74.0+ds1-21_amd64.deb", "7c09f213253419bb32eaa28ffe00be24181e182fb98379710bf3c05b3767fb51"),
    Download(f"{BOOST}/libboost-system1.74-dev_1.74.0+ds1-21_amd64.deb", "d32a82618c48f9a8570c3f9b0213643be98f91cc4882dd6b0a06be78c75a1428"),
)
ARCHIVES = (SOURCE, WEB_SERVER, SCREEN, *LIBRARIES)

# elbencho's service for runs on many hosts, which is not used here, needs a newer web server than GitHub has. These edits adapt the older one: no
# get_io_service(), which newer Boost lacks; remote_endpoint() as a call; start() with a callback.
NEWER = (
    ("socket->get_io_service()", "socket->get_executor()"),
    (
        "      std::shared_ptr<asio::ip::tcp::endpoint> remote_endpoint;\n",
        "      struct called : std::shared_ptr<asio::ip::tcp::endpoint> {\n"
        "        called(std::shared_ptr<asio::ip::tcp::endpoint> one) : std::shared_ptr<asio::ip::tcp::endpoint>(std::move(one)) {}\n"
        "        asio::ip::tcp::endpoint operator()() const { return **this; }\n"
        "      } remote_endpoint;\n",
    ),
    ("    void start() {\n", "    template <class F> void start(F started) { started(bind()); accept_and_run(); }\n    void start() {\n"),
)

# Each run writes a file of 12 MiB and reads it back; --verify fills and checks every 8 bytes with the offset.
SIZES = ("4k", "64k", "1m", "5m")
WAYS = (
    ("--cufile",),
    ("--cufile", "--gdsbufreg"),
    ("--gds",),
    ("--gds", "--backward"),
    ("--gds", "--verifydirect"),
    ("--cuhostbufreg", "--direct"),
)


def build(place: Place, client: Client) -> pathlib.Path:
    folder = place.folder(client)
    tree = place.sources(client, SOURCE, folder / "elbencho")
    program = tree / "bin/elbencho"
    if program.exists():
        return program
    home = place.cuda_home(client)
    external = folder / "external"
    server = place.sources(client, WEB_SERVER, external / "Simple-Web-Server")
    for header in ("client_http.hpp", "server_http.hpp"):
        text = (server / header).read_text()
        for old, new in NEWER:
            text = text if new in text else text.replace(old, new, 1)
        (server / header).write_text(text)
    screen = place.sources(client, SCREEN, external / "ftxui") / "build"
    options = ["-DCMAKE_BUILD_TYPE=Release", *(f"-DFTXUI_BUILD_{part}=OFF" for part in ("EXAMPLES", "TESTS", "DOCS"))]
    place.build(client, ["cmake", "-S", screen.parent, "-B", screen, *options], ["make", "-C", screen, f"-j{place.jobs}"], cwd=folder)
    boost = folder / "boost"
    for library in LIBRARIES:
        place.build(client, ["dpkg-deb", "-x", place.file(client, library), boost], cwd=folder)
    # Replaces the script that clones what is already there.
    (external / "prepare-external.sh").write_text("#!/bin/sh\n")
    (external / "prepare-external.sh").chmod(0o755)
    without = ["BACKTRACE_SUPPORT=0", "LIBAIO_SUPPORT=0", "LIBNUMA_SUPPORT=0", "S3_SUPPORT=0"]
    cuda = ["CUFILE_SUPPORT=1", "CUDA_SUPPORT=1", f"CUDA_INCLUDE_PATH={home}/include", f"CUFILE_INCLUDE_PATH={home}/include"]
    libraries = f"{place.cuda_path(client)} -L {home}/lib64"
    paths = [f"CUDA_LIB_PATH={libraries}", f"CUFILE_LIB_PATH={libraries}", f"EXTERNAL_PATH={external}"]
    flags = [f"CXXFLAGS_EXTRA=-w -isystem {boost}/usr/include", f"LDFLAGS_EXTRA=-L {next(boost.glob('usr/lib/*-linux-gnu'))}"]
    place.build(client, ["make", f"-j{place.jobs}", *without, *cuda, *paths, *flags], cwd=tree)
    return program


def run(place: Place, client: Client) -> str:
    program = build(place, client)
    lines = []
    for way in WAYS:
        for size in SIZES:
            path = place.data(client) / "file"
            job = [*way, f"--block={size}", "--size=12m" if size != "5m" else "--size=15m"]
            command = [program, "--write", "--read", "--threads=2", "--gpuids=0", "--verify=1", "--nolive", *job, path]
            output = place.run_program(client, command)
            if re.search(r"ERROR|mismatch", output):
                raise Failed(f"{' '.join(job)}\n{output}")
            if "--cuhostbufreg" not in way:
                check_used(output)
            lines.append(f"OK {' '.join(job)}")
    return "\n".join([*lines, f"{len(lines)} of {len(WAYS) * len(SIZES)} jobs, {place.memory}"])
