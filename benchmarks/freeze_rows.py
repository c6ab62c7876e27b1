"""Cases of `freeze.py` that are runs over examples: their rows, as `certify_examples` writes them.

A case is a name and a function without arguments that returns the rows. Not all combinations are
cases: all methods on all models without a threat; then each threat and each property on a few
models, by `auto`, `crc` and `crown`, at both levels of guarantee.
"""

import functools
import pathlib
import tempfile

import numpy as np
from freeze_models import SMALL, examples, generator, model_of, small

import keras_curv
from keras_curv import Smoothing, Threat

METHODS = (
    *("auto", "lipschitz", "crc", "two_stage", "quadratic"),
    *("crown", "crc_local", "interval", "coap"),
)
FEW = ("auto", "crc", "crown")
GUARANTEES = ("real", "float32")
CLAIMS = {  # what is certified of models without classes
    "diabetes": {"property": "interval:10", "threat": "saved_models/diabetes_threat.json"},
    "one_score": {"property": "threshold:0.5"},
    "two_numbers": {"property": "interval:0.5"},
}
# Of shipped models: the methods, each with the number of examples that does not take long.
SHIPPED = {
    "digits": dict.fromkeys(METHODS, 64),
    "mnist_2x1024": dict.fromkeys(METHODS, 64) | {"crc_local": 16},
    "mnist_clip": {"auto": 16, "lipschitz": 64, "two_stage": 16, "crown": 4},
    "mnist_3x2048": {"auto": 8, "lipschitz": 64, "crown": 4, "interval": 16},
    "mnist_sigmoid_2x1024": {"crc": 64, "crown": 8, "crc_local": 8},
    "mnist_conv": {"lipschitz": 16, "crc": 16, "crown": 4},
    "cifar10_trunk_512": {"lipschitz": 8, "two_stage": 8},
    "diabetes": dict.fromkeys(METHODS, 64),
    "breast_cancer": dict.fromkeys(METHODS, 64),
}
IN_FLOAT32 = {  # models whose charge for rounding differs in kind, and the examples of each
    "mnist_2x1024": 64,
    "breast_cancer": 64,
    **dict.fromkeys(("relu2", "relu3", "sigmoid3", "max_pooling", "smooth_convolutions"), 64),
    **dict.fromkeys(("sequence", "residual_tanh", "carrying", "kinks", "two_inputs"), 64),
    **dict.fromkeys(("clipping", "trunk", "one_score"), 64),
}


def certified(name, count, **options):
    """Returns the rows of a run over the first examples of a model, a CSV file's text."""
    x, y = examples(name)
    claim = CLAIMS.get(name, {}) | options
    labelled = y is not None and not claim.get("property", "").startswith(("interval", "threshold"))
    some = x[:count], y[:count] if labelled else None
    if isinstance(claim.get("threat"), str):
        claim["threat"] = threat_file(claim["threat"])
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "rows.csv"
        keras_curv.certify_examples(model_of(name), some, output=str(output), **claim)
        return output.read_text()


def threat_file(path):
    """Returns the threat of a .json file, whose names are those of `Threat`'s arguments."""
    import json

    arrays = json.loads(pathlib.Path(path).read_text())
    return Threat(**arrays)


def rows(case, name, count=64, **options):
    """Returns a case of rows."""
    return case + ".csv", functools.partial(certified, name, count, **options)


def suffixed(method, guarantee):
    return method if guarantee == "real" else f"{method}-{guarantee}"


def by_method():
    """All methods, without a threat; at the level float32 a few."""
    counts = {name: dict.fromkeys(METHODS, 64) for name in SMALL} | SHIPPED
    for name, methods in counts.items():
        for method, count in methods.items():
            yield rows(f"methods/{name}/{method}", name, count, method=method)
    for method in METHODS:
        yield rows(f"methods/digits/{method}-float32", "digits", method=method, guarantee="float32")
    for name, count in IN_FLOAT32.items():
        for method in FEW:
            options = {"method": method, "guarantee": "float32"}
            yield rows(f"methods/{name}/{method}-float32", name, count, **options)
    yield rows("methods/mnist_clip/crc-float32", "mnist_clip", 8, method="crc", guarantee="float32")


def threats_of(name, dim):
    """Threats to inputs of so many features, by name."""
    rng = generator(f"threats to {name}")
    scale = rng.uniform(0.5, 2.0, dim)
    box = {"low": 0.0, "high": 1.0} if name == "digits" else {"low": -5.0, "high": 5.0}
    third = {"frozen": list(range(0, dim, 3))}
    return {
        "box": box,
        "at_least": {"low": box["low"]},
        "weight": {"scale": 0.5},
        "weights": {"scale": scale},
        "frozen": third,
        "frozen_weights_box": {"scale": scale, **third, **box},
        "basis": {"basis": rng.standard_normal((dim, 3))},
        "l1": {"norm": "l1"},
        "l1_box": {"norm": "l1", **box},
        "l1_frozen_weights": {"norm": "l1", "scale": scale, **third},
    }


BY_ALL = ("box", "l1", "frozen_weights_box", "basis")  # threats that all methods are asked about


def by_threat():
    """Each threat by a few methods at both levels, and some by all methods."""
    for name, dim in {"digits": 64, "relu2": 12}.items():
        for threat, arguments in threats_of(name, dim).items():
            for method in METHODS if threat in BY_ALL else FEW:
                for guarantee in GUARANTEES if method in FEW else GUARANTEES[:1]:
                    case = f"threats/{name}/{threat}-{suffixed(method, guarantee)}"
                    options = {"method": method, "guarantee": guarantee}
                    yield rows(case, name, 24, threat=Threat(**arguments), **options)
    deep = threats_of("sigmoid3", 10)
    for threat in BY_ALL:
        for method in ("crc", "crown", "crc_local"):
            options = {"threat": Threat(**deep[threat]), "method": method}
            yield rows(f"threats/sigmoid3/{threat}-{method}", "sigmoid3", 24, **options)
    groups = {"groups": [[3, 4, 5], [6, 7]]}
    categories = {
        "groups": groups,
        "two_changes": groups | {"changes": 2},
        "groups_l1": groups | {"norm": "l1"},
        "groups_frozen_weights": groups | {"scale": np.linspace(0.5, 1.5, 8), "frozen": [0]},
    }
    for name, method in (("shop", "auto"), ("shop", "crc"), ("shop_relu", "crown")):
        for threat, arguments in categories.items():
            for guarantee in GUARANTEES:
                case = f"threats/{name}/{threat}-{suffixed(method, guarantee)}"
                options = {"method": method, "guarantee": guarantee}
                yield rows(case, name, 24, threat=Threat(**arguments), **options)
    own, box = "saved_models/breast_cancer_threat.json", Threat(low=0.0, high=1.0)
    for method in FEW:
        yield rows(
            f"threats/breast_cancer/own-{method}", "breast_cancer", threat=own, method=method
        )
        yield rows(f"threats/mnist_2x1024/box-{method}", "mnist_2x1024", threat=box, method=method)
    others = {"clipping": "crc", "trunk": "two_stage", "max_pooling": "crown", "mixed3": "auto"}
    for name, method in (others | {"carrying": "crc", "two_inputs": "crown"}).items():
        for threat in ("box", "l1", "weight"):
            options = {"threat": Threat(**threats_of(name, 1)[threat]), "method": method}
            yield rows(f"threats/{name}/{threat}-{method}", name, 24, **options)


PROPERTIES = {
    "top_2": ("digits", "top_2"),
    "top_3": ("digits", "top_3"),
    "harmful": ("digits", "harmful:3,5"),
    "harmful_pairs": ("digits", "harmful:4>3,5;7>1"),
    "top_2_relu": ("relu3", "top_2"),
    "harmful_relu": ("relu3", "harmful:0"),
    "top_2_two_stage": ("trunk", "top_2"),
    "threshold": ("one_score", "threshold:0.7"),
    "thresholds": ("two_numbers", "threshold:0=0.2,1=-0.1"),
    "interval": ("two_numbers", "interval:0.1"),
    "interval_of_one": ("two_numbers", "interval:1=0.5"),
}


def by_property():
    """Each property by a few methods at both levels, and with some threats."""
    for case, (name, spelling) in PROPERTIES.items():
        for method in FEW:
            for guarantee in GUARANTEES:
                path = f"properties/{case}/{suffixed(method, guarantee)}"
                options = {"method": method, "guarantee": guarantee, "property": spelling}
                yield rows(path, name, 32, **options)
        dim = 64 if name in ("digits", "trunk") else 10 if name == "relu3" else 7
        for threat in ("box", "l1", "weights"):
            options = {"threat": Threat(**threats_of(name, dim)[threat]), "property": spelling}
            yield rows(f"properties/{case}/{threat}-crown", name, 16, method="crown", **options)


def by_option():
    """Rivals, decisions, the tolerance 0, other inputs, and smoothing."""
    for rivals in ("runner_up", "least", "random"):
        for name, method in (("digits", "auto"), ("digits", "crc"), ("relu3", "crown")):
            yield rows(
                f"rivals/{rivals}-{name}-{method}", name, rivals=rivals, method=method, seed=3
            )
    decided = {"digits": (0.4, 0.8), "mnist_2x1024": (0.5, 1.58), "relu2": (0.1, 0.5)}
    decided |= {"relu3": (0.2,), "trunk": (0.3,), "sigmoid3": (0.5, 2.0), "carrying": (1.0, 3.0)}
    decided |= {"clipping": (0.2, 0.6), "residual_tanh": (0.3,), "breast_cancer": (5.0,)}
    for name, radii in decided.items():
        for method in (*FEW, "two_stage"):
            options = {"decide": True, "radii": radii, "method": method}
            yield rows(f"decide/{name}/{method}", name, **options)
    options = {"decide": True, "radii": (0.5,)}
    yield rows("decide/digits/auto-float32", "digits", guarantee="float32", **options)
    yield rows("decide/digits/box-auto", "digits", threat=Threat(low=0.0, high=1.0), **options)
    yield rows("decide/digits/l1-auto", "digits", threat=Threat(norm="l1"), **options)
    yield rows("decide/digits/top_2-auto", "digits", property="top_2", **options)
    options = {"decide": True, "radii": (1.0, 1.58)}
    yield rows("decide/mnist_clip/auto", "mnist_clip", 16, **options)
    exact = ("relu2", "relu3", "sigmoid3", "mixed3", "trunk", "clipping", "smooth_convolutions")
    for name in ("digits", "breast_cancer", *exact):
        yield rows(f"exact/{name}", name, 24, tolerance=0.0)
    for method in ("crown", "crc_local"):
        yield rows(f"exact/sigmoid3-{method}", "sigmoid3", 24, tolerance=0.0, method=method)
    yield rows("exact/sigmoid3-coarse", "sigmoid3", 24, tolerance=0.2)
    yield rows("inputs/scaled", "digits", 16, input_scale=0.5, method="crc")
    yield rows("inputs/small_batches", "digits", 24, batch_size=5, seed=7)
    for noise in ("own", "shared"):
        for rivals in ("all", "runner_up"):
            options = {"smoothing": Smoothing(0.25, 500, 0.01, noise), "rivals": rivals, "seed": 1}
            yield rows(f"smoothing/{noise}-{rivals}", "digits", 16, **options)


def exported():
    """Small models as SavedModels, which are read as files: the rows of a cheap method."""
    for name in SMALL:
        yield f"exported/{name}.csv", functools.partial(_exported, name)


def _exported(name):
    x, _ = examples(name)
    claim = {"method": "interval"} | CLAIMS.get(name, {})
    with tempfile.TemporaryDirectory() as folder:
        model, output = pathlib.Path(folder) / "model", pathlib.Path(folder) / "rows.csv"
        small(name).export(model, verbose=False)
        keras_curv.certify_examples(str(model), (x, None), output=str(output), **claim)
        return output.read_text()


def cases():
    """All cases of rows."""
    for kind in (by_method, by_threat, by_property, by_option, exported):
        yield from kind()
