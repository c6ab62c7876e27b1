"""Shows what is read of a model, layer by layer, and writes it as a network of numbers.

    keras_curv read
    keras_curv read --saved_model DIR --network FILE.npz
    keras_curv read --saved_model MODEL.keras --cut LAYER

Exit status: 0 done, 2 bad input.
"""

from __future__ import annotations

from keras_curv.certificates.options import ProofOptions
from keras_curv.cli.command import DIGITS, Command, loading
from keras_curv.errors import InputError

COMMAND = Command("read", __doc__, "start it again")
FLAGS = COMMAND.flags

MODEL = COMMAND.section("Model")
MODEL.strings(
    {
        "saved_model": "Directory of the SavedModel to read, or a base path with numbered versions, of which the newest is taken; or a .keras or .h5 file, as Keras saves a model; default: the model of digits that comes with the package."
    },
    saved_model=str(DIGITS),
)
MODEL.options(ProofOptions, "signature output_name cut")

OUTPUT = COMMAND.section("What to write")
OUTPUT.strings(
    {
        "network": "File to write of the network as numbers (.npz): affine maps, activations, bounds of folding errors, as docs/network_file.md describes them. It is replaced if it exists."
    }
)


@COMMAND.main
def main() -> int:
    """Reads a model, prints its layers and writes its numbers; returns the exit status."""
    if FLAGS.network == "":
        raise InputError("--network must name a file. Received: ''")
    with loading():
        from keras_curv.network.network_file import save_network
        from keras_curv.reading import served_model
        from keras_curv.reading.outline import outline

    chosen = COMMAND.values("signature", "output_name", "cut")
    served = served_model.read(FLAGS.saved_model, scores=True, **chosen)
    for line in outline(served):
        print(line)
    if FLAGS.network is not None:
        print(f"fingerprint: {save_network(served.network, FLAGS.network, served.head)}")
        print(f"network: {FLAGS.network}")
    return 0
