"""`keras_curv` and `python -m keras_curv`: the commands by name, from any directory."""

import gc
import pathlib
import subprocess
import sys

import keras
import pytest
from scripts import succeeds_alone

import keras_curv
from keras_curv.cli import main
from keras_curv.cli.command import loading
from keras_curv.errors import InputError
from keras_curv.version import __version__

ROOT = pathlib.Path(__file__).resolve().parents[2]


def status(capfd, *arguments):
    with pytest.raises(SystemExit) as stop:
        main.main(list(arguments))
    return stop.value.code, *capfd.readouterr()


def test_help_and_version(capfd):
    for arguments in ((), ("--help",), ("-h",)):
        code, out, err = status(capfd, *arguments)
        assert code == 0 and err == "" and all(name in out for name in main.COMMANDS)
    assert status(capfd, "--version") == (0, f"keras_curv {__version__}\n", "")


@pytest.mark.parametrize("arguments", [("train", "--help"), ("--help",), ("--version",)])
def test_help_may_be_read_in_part(arguments, tmp_path):
    """As `| head` does; here, by a reader who is gone already."""
    command = [sys.executable, "-m", "keras_curv", *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **options) as process:
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == 0


def test_a_verdict_stands_whoever_reads_the_table():
    gate = "--radius", "0.5", "--require_certified_accuracy", "1.0", "--limit", "8"
    command = [sys.executable, "-m", "keras_curv", "certify", *gate, "--method", "lipschitz"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **options) as process:
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == 3


def test_an_unknown_command_is_one_line(capfd):
    code, out, err = status(capfd, "prove")
    assert code == 2 and out == ""
    assert err == f"keras_curv: no command 'prove'; there are {', '.join(main.COMMANDS)}\n"


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_of_a_command_needs_no_tensorflow(name, tmp_path):
    code = (
        "import sys; sys.argv = ['bin/keras_curv']\n"
        "from keras_curv.cli.main import main\n"
        "try:\n"
        f"    main([{name!r}, '--help'])\n"
        "finally:\n"
        "    assert 'tensorflow' not in sys.modules\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert result.returncode == 0 and result.stderr == ""
    assert f"keras_curv {name}" in result.stdout
    assert "--network" in result.stdout or "--output" in result.stdout


def test_the_model_of_the_package_from_any_directory(tmp_path):
    command = [
        sys.executable,
        "-m",
        "keras_curv",
        "certify",
        "--limit",
        "1",
        "--method",
        "lipschitz",
    ]
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}
    )
    assert result.returncode == 0 and result.stderr == ""
    assert "certified accuracy" in result.stdout and "(1 certified at some radius)" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_keras_is_certified_by_the_command_alone(tmp_path):
    layers = [keras.layers.Flatten(), keras.layers.Dense(5, "tanh"), keras.layers.Dense(10)]
    path = tmp_path / "digits.keras"
    keras.Sequential([keras.Input((8, 8, 1)), *layers]).save(path)
    command = f"-m keras_curv certify --limit 2 --method lipschitz --saved_model {path}".split()
    result = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert result.returncode == 0 and result.stderr == ""
    assert "certified accuracy" in result.stdout and "digits.keras" in result.stdout


@pytest.mark.slow
def test_a_class_is_known_to_keras_once_both_are_imported():
    """A saved model is loaded by the names of its classes; here Keras came first, there it does
    not."""
    known = "keras.saving.get_registered_object('keras_curv>CRTModel') is keras_curv.CRTModel"
    assert eval(known, {"keras": keras, "keras_curv": keras_curv})
    assert succeeds_alone(f"import keras_curv, keras\nassert {known}\n")


@pytest.mark.parametrize(("given", "alone"), [(None, True), ("1", True), ("2", False)])
def test_a_product_has_one_thread_and_batches_have_the_others(given, alone):
    code = (
        "import os, sys; sys.argv = ['bin/certify']\n"
        f"given = {given!r}\n"
        "if given: os.environ['OPENBLAS_NUM_THREADS'] = given\n"
        "from keras_curv.cli.main import main\n"
        "try:\n"
        "    main(['certify', '--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "from keras_curv.numerics import batches\n"
        "assert os.environ['OPENBLAS_NUM_THREADS'] == (given or '1')\n"
        f"assert batches.processors() == (len(os.sched_getaffinity(0)) if {alone} else 1)\n"
    )
    assert succeeds_alone(code)


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_left_alone_while_libraries_load_and_no_longer(collects):
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        with pytest.raises(InputError), loading():
            assert not gc.isenabled()
            raise InputError("a library that is not there")
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()
