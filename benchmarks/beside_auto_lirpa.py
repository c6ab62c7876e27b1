"""Counts images of MNIST that are verified in l∞ here, and by auto_LiRPA's CROWN and α-CROWN.

    python benchmarks/beside_auto_lirpa.py --folder DIR
    python benchmarks/beside_auto_lirpa.py --folder DIR --rival   # Python with torch, auto_LiRPA

The nets have the shapes of VNN-COMP 2020's fully connected ones: 2, 4 and 6 hidden layers of 256
ReLU, 3 and 6 of 100 sigmoid or tanh. They are trained plainly, as theirs were: Adam at 1e-3, three
epochs. The attacker adds at most ε to each pixel and stays in [0, 1]; of the first `--limit` test
images those that a net classifies correctly are asked for, all rivals.

The first command trains, certifies at each ε by `--method` with `decide`, and writes weights,
images and counts to the folder; the second one bounds the same margins there and prints all. Each
is timed without what it does once for a net: reading, tracing, a first image. auto_LiRPA computes
in float32 and charges no rounding. Its version 0.3 asks for torch 1.12; what it takes from there to
read a graph is given to it where torch is newer:

    pip install 'numpy<2' torch tqdm appdirs pyyaml graphviz oslash==0.5.1 sortedcontainers
    pip install --no-deps auto_LiRPA==0.3
"""

import argparse
import importlib
import json
import pathlib
import time

import numpy as np

NETS = {
    "relu 2 × 256": ("relu", 2, 256, (0.02, 0.05)),
    "relu 4 × 256": ("relu", 4, 256, (0.02, 0.05)),
    "relu 6 × 256": ("relu", 6, 256, (0.02, 0.05)),
    "sigmoid 3 × 100": ("sigmoid", 3, 100, (0.012, 0.03)),
    "sigmoid 6 × 100": ("sigmoid", 6, 100, (0.012, 0.03)),
    "tanh 3 × 100": ("tanh", 3, 100, (0.012, 0.03)),
    "tanh 6 × 100": ("tanh", 6, 100, (0.012, 0.03)),
}
RIVALS = {"CROWN": "CROWN", "α-CROWN": "CROWN-Optimized"}


def trained(activation, layers, width):
    import keras

    from keras_curv import data

    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(width, activation) for _ in range(layers)]
    flat = keras.Input((28, 28, 1)), keras.layers.Flatten()
    model = keras.Sequential([*flat, *hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    model.fit(*data.load("mnist", "train").arrays(), batch_size=64, epochs=3, verbose=0)
    return model


def ours(options):
    """Trains and certifies; writes an .npz file for each net."""
    from keras_curv import certify, data

    x, y = data.load("mnist", "test").limited(options.limit).arrays()
    for name, (activation, layers, width, radii) in chosen(options):
        model = trained(activation, layers, width)
        correct = model.predict(x, verbose=0).argmax(axis=1) == y
        images, labels = x[correct], y[correct]
        counts = {}
        for radius in radii:
            asked = {"method": options.method, "decide": [radius]}
            asked["threat"] = {"norm": "linf", "low": 0.0, "high": 1.0}
            certify(model, images[:1], labels[:1], **asked)
            begun = time.perf_counter()
            found = certify(model, images, labels, **asked)
            seconds = time.perf_counter() - begun
            counts[str(radius)] = [int((found.radius >= radius).sum()), seconds]
        print(name, f"{len(images)} images", counts, flush=True)
        dense = [layer.get_weights() for layer in model.layers if layer.get_weights()]
        weights = {f"kernel_{i}": one[0] for i, one in enumerate(dense)}
        weights |= {f"bias_{i}": one[1] for i, one in enumerate(dense)}
        examples = {"x": images.reshape(len(images), -1), "y": labels}
        np.savez(options.folder / f"{name}.npz", counts=json.dumps(counts), **weights, **examples)


def rival(options):
    """Prints a table, with what auto_LiRPA verifies of the same margins."""
    torch, lirpa = imported_lirpa()
    activations = {"relu": torch.nn.ReLU, "sigmoid": torch.nn.Sigmoid, "tanh": torch.nn.Tanh}
    names = ["here", *RIVALS]
    print("| net, ε | images |", *(f"{one} | s |" for one in names))
    print("| --- | ---: |", *("---: | ---: |" for _ in names))
    for name, (activation, layers, _, radii) in chosen(options):
        with np.load(options.folder / f"{name}.npz") as file:
            given = {key: file[key] for key in file.files}
        counts, x, y = json.loads(str(given["counts"])), torch.tensor(given["x"]), given["y"]
        modules = []
        for i in range(layers + 1):
            kernel, bias = (torch.tensor(given[f"{kind}_{i}"]) for kind in ("kernel", "bias"))
            linear = torch.nn.Linear(*kernel.shape)
            linear.weight.data, linear.bias.data = kernel.T.contiguous(), bias
            modules += [linear, activations[activation]()] if i < layers else [linear]
        net = torch.nn.Sequential(*modules)
        assert (net(x).argmax(1).numpy() == y).all(), "the weights are not those of the Keras net"
        others = np.array([[j for j in range(10) if j != label] for label in y])
        margins = torch.tensor((np.eye(10)[y][:, None] - np.eye(10)[others]).astype(np.float32))
        for radius in radii:
            cells = [*counts[str(radius)]]
            for method in RIVALS.values():
                verified, begun = 0, time.perf_counter()
                count = min(len(x), options.optimized) if "Optimized" in method else len(x)
                for start in range(0, count, options.batch):
                    part = slice(start, min(start + options.batch, count))
                    keeps = {"sparse_features_alpha": False}  # which fails where a layer is stable
                    bounded = lirpa.BoundedModule(net, x[part], bound_opts=keeps, device="cpu")
                    ends = (x[part] - radius).clamp(min=0.0), (x[part] + radius).clamp(max=1.0)
                    box = lirpa.PerturbationLpNorm(norm=np.inf, x_L=ends[0], x_U=ends[1])
                    args = {"x": (lirpa.BoundedTensor(x[part], box),), "C": margins[part]}
                    low = bounded.compute_bounds(method=method, bound_upper=False, **args)[0]
                    verified += int((low.min(dim=1).values > 0.0).sum())
                of = "" if count == len(x) else f" of {count}"
                cells += [f"{verified}{of}", time.perf_counter() - begun]
            print(f"| {name}, {radius} | {len(x)} |", end="")
            pairs = zip(*[iter(cells)] * 2, strict=True)
            print("".join(f" {n} | {s:.1f} |" for n, s in pairs), flush=True)


def imported_lirpa():
    """Returns torch and auto_LiRPA; a newer torch is given what the latter takes of 1.12."""
    import torch

    torch.set_num_threads(1)
    try:
        return torch, importlib.import_module("auto_LiRPA")
    except ImportError:
        inside = "torch.onnx._internal.torchscript_exporter"
        kept, exporter = (importlib.import_module(f"{inside}.{n}") for n in ("_globals", "utils"))
        helper = importlib.import_module("torch.onnx.symbolic_helper")
        helper._set_opset_version = lambda number: setattr(
            kept.GLOBALS, "export_onnx_opset_version", number
        )
        importlib.import_module("torch.onnx.utils")._optimize_graph = exporter._optimize_graph
        torch._C.Node.__getitem__ = lambda node, key: getattr(node, node.kindOf(key))(key)
        return torch, importlib.import_module("auto_LiRPA")


def chosen(options):
    return [(name, net) for name, net in NETS.items() if options.only in name]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--rival", action="store_true")
    parser.add_argument("--limit", type=int, default=100, help="test images")
    parser.add_argument("--only", default="", help="nets with this in their names")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--optimized", type=int, default=10**6, help="images for α-CROWN")
    parser.add_argument(
        "--batch", type=int, default=50, help="images that auto_LiRPA takes at once"
    )
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    rival(options) if options.rival else ours(options)


if __name__ == "__main__":
    main()
