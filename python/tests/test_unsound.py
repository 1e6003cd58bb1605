"""A program that fails its checks gives neither values nor times."""

import gzip
import io
import struct
import tarfile
from pathlib import Path

import pytest

from neffuse import _neffuse

GRAPH = Path(__file__).parents[2] / "tests/graphs/rms_norm_naive_bf16.inf.json"
HEADER_BYTES, DATA_SIZE_AT, RECORD_BYTES, N_WAITS_AT = 1024, 16, 256, 2


def without_waits(neff):
    """The same NEFF with no waits in the vector engine's stream; ``docs/isa.md`` has the record's layout."""
    archive = bytearray(gzip.decompress(neff[HEADER_BYTES:]))
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        stream = next(member for member in members if member.name.endswith("DVE.bin"))
    end = stream.offset_data + stream.size
    dropped = sum(archive[at] for at in range(stream.offset_data + N_WAITS_AT, end, RECORD_BYTES))
    assert dropped > 0
    for at in range(stream.offset_data + N_WAITS_AT, end, RECORD_BYTES):
        archive[at] = 0
        archive[at + 2 : at + 10] = bytes(8)
    payload = gzip.compress(bytes(archive))
    header = bytearray(neff[:HEADER_BYTES])
    struct.pack_into("<Q", header, DATA_SIZE_AT, len(payload))
    return bytes(header) + payload


def test_nothing_is_loaded_that_fails_its_checks():
    compiled = _neffuse.compile(GRAPH.read_bytes(), cache=False)
    assert _neffuse.load(compiled.neff, weights=[]).simulated_ns == 0
    with pytest.raises(_neffuse.InternalError, match=r"race-read-after-write.*dma_copy.*dve"):
        _neffuse.load(without_waits(compiled.neff), weights=[])
