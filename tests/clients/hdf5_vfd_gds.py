"""HDF5 with vfd-gds, the driver that reads and writes files by cuFile: the driver's own test, which checks its datasets itself."""

import pathlib

from harness import Client, Download, Failed, Place, Source, check_used

MPICH = "mpich==5.0.2"  # the test needs MPI, and runs as one process
HDF5 = Download(
    "https://deb.debian.org/debian/pool/main/h/hdf5/hdf5_1.14.5+repack.orig.tar.gz",
    "71cdb04c151ef4e8a7f88907adfc4f3b75afd44e96fbd55775e1c9d7c4e7c112",
)
SOURCE = Source("hpc-io/vfd-gds", "56df26ebbc9ded02406acf012b17227386fdacdd")


def build(place: Place, client: Client) -> list[pathlib.Path]:
    """Builds HDF5, the driver and its test. Returns the folders of the libraries that the test needs."""
    folder = place.folder(client)
    home = place.cuda_home(client)
    mpi = next(place.unpacked(client, MPICH).glob("*.data/data"))
    hdf5 = folder / "hdf5"
    libraries = [hdf5 / "lib", mpi / "lib", mpi / "lib/mpich"]
    if not (hdf5 / "lib/libhdf5.so").exists():
        tree = place.sources(client, HDF5, folder / "hdf5-source")
        flags = ["-DCMAKE_BUILD_TYPE=Release", "-DMPI_ASSUME_NO_BUILTIN_MPI=ON", f"-DMPI_C_HEADER_DIR={mpi}/include", "-DMPI_C_LIB_NAMES=mpi"]
        flags += [f"-DMPI_mpi_LIBRARY={mpi}/lib/libmpi.so", f"-DCMAKE_C_FLAGS=-w -I{mpi}/include"]
        flags += [f"-DCMAKE_INSTALL_PREFIX={hdf5}", "-DCMAKE_INSTALL_LIBDIR=lib", "-DHDF5_ENABLE_PARALLEL=ON", "-DHDF5_ENABLE_SZIP_SUPPORT=OFF"]
        parts = ("CPP_LIB", "HL_LIB", "TOOLS", "EXAMPLES", "FORTRAN")
        flags += [*(f"-DHDF5_BUILD_{part}=OFF" for part in parts), "-DBUILD_TESTING=OFF", "-DBUILD_STATIC_LIBS=OFF"]
        make = ["make", "-C", folder / "hdf5-build", f"-j{place.jobs}", "install"]
        place.build(client, ["cmake", "-S", tree, "-B", folder / "hdf5-build", *flags], make, cwd=folder)
    tree = place.sources(client, SOURCE, folder / "vfd-gds")
    (folder / "plugin").mkdir(exist_ok=True)
    include = [f"-I{path}" for path in (tree / "src", hdf5 / "include", mpi / "include", home / "include")]
    paths = [*(f"-L{path}" for path in libraries), *place.link_flags(client).split()]
    common = [place.cc, "-O1", "-w", *include]
    link = [*paths, "-lhdf5", "-lmpi", "-lcufile", "-lcudart", "-lcuda", "-lpthread", "-Wl,--allow-shlib-undefined"]
    driver = [*common, "-shared", "-fPIC", tree / "src/H5FDgds.c", "-o", folder / "plugin/libhdf5_vfd_gds.so"]
    place.build(client, [*driver, *link], [*common, tree / "test/gds_test.c", "-o", folder / "gds_test", *link], cwd=folder)
    return libraries


def run(place: Place, client: Client) -> str:
    libraries = build(place, client)
    folder = place.folder(client)
    output = place.run(
        client,
        [place.penstock, "run", "--log", "summary", "--", folder / "gds_test"],
        library_path=":".join([place.cuda_path(client), *map(str, libraries)]),
        HDF5_PLUGIN_PATH=str(folder / "plugin"),
        HDF5_DRIVER="gds",
    )
    if "All GDS VFD tests passed" not in output:
        raise Failed(output)
    check_used(output)
    return f"{output}\nall tests of vfd-gds, {place.memory}"
