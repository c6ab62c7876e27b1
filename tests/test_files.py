"""What is opened is a regular file, and JSON means one thing."""

import os

import pytest

from keras_curv.files import open_named, open_regular, parse_json, read_at_most, read_named

NO_FILES = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a directory": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path),
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("name", NO_FILES)
@pytest.mark.parametrize("opened", [open_named, open_regular])
def test_what_is_no_regular_file_is_not_waited_for(name, opened, tmp_path):
    NO_FILES[name](tmp_path / "file")
    with pytest.raises(OSError, match="it is|No such file|Is a directory|symbolic links"):
        opened(tmp_path / "file")


def test_a_link_is_followed_only_where_a_user_named_it(tmp_path):
    (tmp_path / "file").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("file")
    assert read_named(tmp_path / "link", 4) == read_at_most(tmp_path / "file", 4) == b"1234"
    with pytest.raises(OSError, match="it is a link"):
        read_at_most(tmp_path / "link", 4)
    for path, read in (("link", read_named), ("file", read_at_most)):
        with pytest.raises(OSError, match="more than 3 bytes"):
            read(tmp_path / path, 3)


def test_json_of_one_meaning():
    text = b'{"a": [1, -2.5, null, true, "x"], "b": {"a": 1e300}, "c": %s}' % (b"1" * 300)
    known = {"a": [1, -2.5, None, True, "x"], "b": {"a": 1e300}, "c": int("1" * 300)}
    assert parse_json(text) == known


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1, "a": 1}', "'a' is named twice"),
        (b'[{"b": {"a": 1, "a": 2}}]', "'a' is named twice"),
        (b"[NaN]", "NaN is no number that float64 holds"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b"[1e999]", "1e999 is no number"),
        (b"[%s]" % (b"9" * 400), "9999 is no number"),
        (b"[%s]" % (b"9" * 5000), "9999 is no number"),
        (b"[" * 10**6, "nests too deeply"),
        (b'{"a":' * 10**5, "nests too deeply"),
        (b'"\xff"', "utf-8"),
        ('{"a": 1}'.encode("utf-16"), "utf-8"),
        (b"{} {}", "Extra data"),
        (b"", "Expecting value"),
    ],
)
def test_json_of_none_or_two(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)
