"""Keras classifiers whose l2 robustness can be proved: training, attacks and certificates."""

from keras_curv.attacks.crt import AttackResult, curvature_attack
from keras_curv.attacks.pgd import pgd_attack
from keras_curv.certificates.certificate import Certificates, Status
from keras_curv.certificates.certifier import Certifier, certify, success_rates
from keras_curv.certificates.crc import CurvatureCertificate
from keras_curv.certificates.smoothing import Smoothing
from keras_curv.curvature.bounds import CurvatureBounds, curvature_bounds
from keras_curv.curvature.gap import curvature_gap
from keras_curv.data.examples import Examples
from keras_curv.errors import InputError
from keras_curv.network.network import Network
from keras_curv.reading.saved_model import ServedModel, read
from keras_curv.runs.runner import certify_examples
from keras_curv.serving.certified_signature import certified_serving
from keras_curv.serving.certify_requests import certify_requests
from keras_curv.training.callbacks import CertifiedAccuracy
from keras_curv.training.models import CRTModel, CurvatureRegularizer
from keras_curv.training.recipe import Recipe
from keras_curv.training.trainer import train
from keras_curv.version import __version__

__all__ = [
    "AttackResult",
    "CRTModel",
    "CertifiedAccuracy",
    "Certificates",
    "Certifier",
    "CurvatureBounds",
    "CurvatureCertificate",
    "CurvatureRegularizer",
    "Examples",
    "InputError",
    "Network",
    "Recipe",
    "ServedModel",
    "Smoothing",
    "Status",
    "__version__",
    "certified_serving",
    "certify",
    "certify_examples",
    "certify_requests",
    "curvature_attack",
    "curvature_bounds",
    "curvature_gap",
    "pgd_attack",
    "read",
    "success_rates",
    "train",
]
