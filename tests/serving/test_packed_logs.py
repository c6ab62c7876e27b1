"""Gzip files of requests: what is in them, and no more of it than a limit."""

from __future__ import annotations

import gzip
import time
import zlib

import logged
import pytest

from keras_curv.data import tf_record
from keras_curv.data.tf_record import read_records
from keras_curv.errors import InputError
from keras_curv.serving.options import RequestOptions


def framed(tmp_path, records):
    return open(logged.write(tmp_path / "plain", records), "rb").read()


@pytest.mark.parametrize("padding", [b"", b"\0" * 70_000])
def test_parts_behind_one_another_are_one_file(tmp_path, padding):
    """As `cat a.gz b.gz` makes; Python's reader takes zeros between them too."""
    whole, path = framed(tmp_path, [b"a" * 50, b"", b"b" * 99]), tmp_path / "log"
    path.write_bytes(padding.join([gzip.compress(whole[:70]), gzip.compress(whole[70:])]) + padding)
    assert gzip.open(path).read() == whole
    assert list(read_records(str(path))) == [b"a" * 50, b"", b"b" * 99]


def test_what_unpacks_to_too_much_is_refused_after_what_is_within(tmp_path):
    path = logged.write(tmp_path / "log", [b"\0" * 1000] * 100, "GZIP")
    found = []
    with pytest.raises(InputError, match="log: record 9 lies beyond the 10000 bytes that the file"):
        for record in read_records(path, 10_000):
            found.append(record)
    assert len(found) == 9
    assert len(list(read_records(path))) == len(list(read_records(path, 10**6))) == 100


def test_a_bomb_is_bounded_against_its_size(tmp_path, monkeypatch):
    """Whether its length says so, or is above the limit of a record and passed over."""
    monkeypatch.setattr(tf_record, "UNPACKED", 2**20)
    for length in (2**25, 2**40):
        head = length.to_bytes(8, "little")
        head += tf_record.masked_crc32c(head).to_bytes(4, "little")
        packer = zlib.compressobj(9, wbits=31)
        path = tmp_path / "bomb"
        with path.open("wb") as file:
            file.write(packer.compress(head))
            for _ in range(2**6):
                file.write(packer.compress(b"\0" * 2**20))
            file.write(packer.flush())
        limit = 100 * path.stat().st_size
        with pytest.raises(InputError, match=f"record 0 lies beyond the {limit} bytes"):
            list(read_records(str(path)))


def test_empty_parts_without_end_are_refused_soon(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(b"", 9) * 10**6)
    begun = time.process_time()
    with pytest.raises(InputError, match="lies behind 65536 packed parts"):
        list(read_records(str(path)))
    assert time.process_time() - begun < 3.0


def test_a_name_without_end_is_no_record(tmp_path):
    """Which Python's reader takes a byte at a time."""
    path = tmp_path / "log"
    path.write_bytes(b"\x1f\x8b\x08\x08" + b"\0" * 6 + b"a" * 10**7)
    begun = time.process_time()
    with pytest.raises(InputError, match="record 0 is cut off"):
        list(read_records(str(path)))
    assert time.process_time() - begun < 0.5


def test_the_limit_must_be_a_size():
    with pytest.raises(InputError, match="max_unpacked must be an integer, at least 1"):
        RequestOptions(max_unpacked=0)
