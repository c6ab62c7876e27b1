"""Flags from files: each line is a word, and nothing is waited for or read without end."""

import os

import pytest

from keras_curv.cli.flag_file import expanded
from keras_curv.errors import InputError


def test_lines_stand_where_the_file_was_named(tmp_path):
    (tmp_path / "inner").write_text("// theirs\r\n--limit=5\r\n")
    (tmp_path / "outer").write_text(
        f"# mine\n\n  --method=crc  \n-flagfile={tmp_path / 'inner'}\n--resume\n"
    )
    words = ["--plot=a", "--flagfile", str(tmp_path / "outer"), "--limit", "7"]
    found = ["--plot=a", "--method=crc", "--limit=5", "--resume", "--limit", "7"]
    assert expanded(words) == found
    words = ["--resume", "--", f"--flagfile={tmp_path / 'none'}"]
    assert expanded(words) == words  # what follows is no flag


def test_files_are_read_a_few_times_in_all(tmp_path):
    for number in range(40):
        following = f"--flagfile={tmp_path / str(number + 1)}\n" * 2
        (tmp_path / str(number)).write_text(following)
    (tmp_path / "40").write_text("--resume\n")
    with pytest.raises(InputError, match="more than 32 files"):
        expanded([f"--flagfile={tmp_path / '0'}"])
    (tmp_path / "large").write_text("#" * 70_000)
    assert expanded([f"--flagfile={tmp_path / 'large'}"]) == []
    with pytest.raises(InputError, match="more than"):
        expanded([f"--flagfile={tmp_path / 'large'}"] * 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: path.write_bytes(b"--method=\xff"), "not a file of flags"),
        (lambda path: path.write_bytes(b"--method=a\0b"), "a NUL in it"),
        (lambda path: None, "No such file"),
    ],
)
def test_what_is_no_file_of_flags(make, message, tmp_path):
    make(tmp_path / "flags")
    with pytest.raises(InputError, match=message):
        expanded([f"--flagfile={tmp_path / 'flags'}"])
    with pytest.raises(InputError, match="needs the name of a file"):
        expanded(["--flagfile"])
