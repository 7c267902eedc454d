"""Reads some rows of a sparse matrix from its file straight into the memory of a GPU, as one scattered read.

    python cufile_scattered_read.py [--rows 20000] [--wanted 2000] [--device cuda:0]

The file holds the matrix by compressed rows (CSR): where each row starts, then the columns of all entries, then their values. A wanted
row is two pieces of it, and all pieces of all wanted rows are read by one call.
"""

from __future__ import annotations

import argparse
import array
import itertools
import os
import random
import struct
import tempfile

import penstock
from penstock import cufile

HEADER = struct.Struct("=qq")  # rows, entries


def write_matrix(path: str, rows: int, chance: random.Random) -> None:
    """A matrix with 0 to 40 entries in each row; the value of an entry tells its row and column."""
    lengths = [chance.randrange(41) for _ in range(rows)]
    starts = array.array("q", itertools.accumulate(lengths, initial=0))
    columns = array.array("i", (column for length in lengths for column in range(3, 3 + 7 * length, 7)))
    owners = (row for row, length in enumerate(lengths) for _ in range(length))
    values = array.array("d", (row + column / 1024 for row, column in zip(owners, columns)))
    with open(path, "wb") as file:
        file.write(HEADER.pack(rows, len(columns)))
        for part in (starts, columns, values):
            part.tofile(file)


def read_rows(path: str, wanted: list[int], device: str) -> tuple[list[int], bytes, bytes]:
    """(entries of each wanted row, all their columns, all their values); the latter two by way of the device."""
    with open(path, "rb") as file:
        rows, entries = HEADER.unpack(file.read(HEADER.size))
        starts = array.array("q")
        starts.fromfile(file, rows + 1)
    columns_at = HEADER.size + 8 * (rows + 1)
    values_at = columns_at + 4 * entries

    lengths = [starts[row + 1] - starts[row] for row in wanted]
    total = sum(lengths)
    columns = penstock.device(device).empty(max(4, 4 * total))
    values = penstock.device(device).empty(max(8, 8 * total))
    pieces = []
    done = 0
    for row, length in zip(wanted, lengths):
        pieces.append(cufile.IOVec(columns.ptr, 4 * length, columns_at + 4 * starts[row], 4 * done))
        pieces.append(cufile.IOVec(values.ptr, 8 * length, values_at + 8 * starts[row], 8 * done))
        done += length

    moved = penstock.device(device).empty(8)
    descriptor = os.open(path, os.O_RDONLY)
    handle = cufile.handle_register(descriptor)
    cufile.readv(handle, pieces, len(pieces), 0, moved.ptr)
    cufile.handle_deregister(handle)
    os.close(descriptor)
    (count,) = struct.unpack("=q", moved.to_host())
    if count != 12 * total:
        raise SystemExit(f"{count} bytes were read of {12 * total}")
    return lengths, columns.to_host()[: 4 * total], values.to_host()[: 8 * total]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--wanted", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default=penstock.devices()[0].name)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "matrix.csr")
        write_matrix(path, asked.rows, chance)
        wanted = chance.sample(range(asked.rows), asked.wanted)
        lengths, columns, values = read_rows(path, wanted, asked.device)

    expected = (row + column / 1024 for row, length in zip(wanted, lengths) for column in range(3, 3 + 7 * length, 7))
    right = array.array("d", values) == array.array("d", expected)
    entries = sum(lengths)
    print(
        f"{entries} entries of {len(wanted)} rows, {2 * len(wanted)} pieces of the file, in the memory of {asked.device}: "
        f"{'right' if right and len(columns) == 4 * entries else 'WRONG'}"
    )
    raise SystemExit(0 if right else 1)


if __name__ == "__main__":
    main()
