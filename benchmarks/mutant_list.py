"""What `mutants.py` changes, which tests are to notice, and what none can."""

TERMS = "tests/numerics/test_each_term.py"
CHARGES = "tests/certificates/test_each_charge.py"
PROOFS = "tests/certificates/test_each_proof.py"
LIPSCHITZ = "tests/certificates/test_each_lipschitz.py"
OF_NORMS = "tests/curvature/test_liplt_in_norm.py"
CUBES = "tests/threats/test_cubes.py"
IN_NORMS = "tests/threats/test_norms.py::test_"
ALL_TESTS = TERMS, CHARGES, LIPSCHITZ, PROOFS
CRC = "certificates.crc."
COUPLING = "certificates.linear.bounds.coupling"

# Every change that is known, of these functions.
FUNCTIONS = {
    "numerics.rounding": (
        *("gamma", "up", "scaled_back", "norm_bound", "_sparse_norms", "_above", "_norm"),
        *("unit_and_tiny", "pre_activation_errors", "activation_errors", "_errors"),
        *("margin_charge", "margin_error", "gradient_error"),
    ),
    "dual": ("minorant", "certified_radius", "norm", "_scaled"),
    CRC + "proved_radius": ("charged", "proved_radius", "charged_minorant"),
    CRC + "in_cube": ("least_concave",),
    COUPLING: (
        *("Coupling.linear", "Coupling.least", "Coupling._minima", "Coupling.offset"),
        *("Coupling.turned", "Coupling.rounding", "coupling_of"),
    ),
    "certificates.lipschitz": (
        *("margin_lipschitz_bounds", "column_distances", "LipschitzCertificate.prove"),
    ),
}
NO_ERROR = "tf.zeros_like(taken_off)"
# Where most of a function only searches: what stands there, and what takes its place.
TEXTS = {
    "certificates.lipschitz": (
        ("yield UnitNorms(whole, apart)", "yield UnitNorms(apart, apart)"),
        ("product, error = product_after(affine, product, error)", "pass"),
        (
            "last.kernel, np.full(network.classes, last.kernel_error)",
            "last.kernel, np.zeros(network.classes)",
        ),
    ),
    CRC + "in_cube": (
        (
            "least_concave(slope, kappa, up, down) - rounding.up(off)",
            "least_concave(slope, kappa, up, down)",
        ),
        ("+ kappa[:, None] * moved", ""),
    ),
    "threats.norms": (
        ("return up(fall, terms + 16) + terms * TINY", "return fall + terms * TINY"),
        ("return up(fall, terms + 16) + terms * TINY", "return up(fall, terms + 16)"),
        ("np.fmin(_limits(rows, reach), radius[:, None, None])", "_limits(rows, reach) * 0.0"),
        (
            "return up(np.abs(rows).sum(axis=-1), rows.shape[-1] + 8)",
            "return np.abs(rows).sum(axis=-1)",
        ),
        ("return up(radius * np.sqrt(count))", "return radius"),
        ("up(norm_bound(weights) * up(spectral", "up(up(spectral"),
        ("norm_bound(matrix, axis=1).max()", "norm_bound(matrix, axis=1).min()"),
        ("return min(by_columns, by_rows)", "return min(by_columns, by_rows, rows.max())"),
        ("return radius / np.sqrt(count) * (1.0 - gamma(8))", "return radius"),
    ),
    "certificates.other_norms": (
        (
            "self._charge(x, label, rivals, self._norm.length(radius, self._count))",
            "self._charge(x, label, rivals, radius)",
        ),
        ("(steepest + self._length * slope_error)", "steepest"),
        ("np.where(proof.radius > known, radius, question.known)", "proof.radius"),
    ),
    "curvature.in_norm": (
        ("before[index - 1])", "1.0)"),
        ("up((entries + more) ** 2, 8)", "up(entries**2, 8)"),
        ("kappa = up(kappa * length**2) if length > 1.0 else kappa", "kappa = kappa"),
    ),
    "curvature.liplt_in_norm": (
        ("up(norm.to_l2(product.kernel) + float(error))", "up(norm.to_l2(product.kernel))"),
        ("norm.length(np.array(product.norm), entries)", "product.norm"),
        ("norm.length(np.array(limit), entries)", "limit"),
    ),
    CRC + "crc": (
        (
            "np.maximum(-self.curvature.lower, 0.0) + rounding.CURVATURE_FLOOR",
            "np.maximum(-self.curvature.lower, 0.0)",
        ),
        ("np.maximum(-self.curvature.lower, 0.0) + ", "np.minimum(-self.curvature.lower, 0.0) + "),
        ("np.where(self.constant_margins, 0.0, kappa)", "kappa"),
        ("np.where(self.constant_margins, 0.0, kappa)", "0.0 * kappa"),
        ("same & (last.kernel_error == 0.0)", "same"),
        ("np.all(columns == column, axis=1)", "np.any(columns == column, axis=1)"),
        ("if any(affine.is_zero", "if any(not affine.is_zero"),
        ("np.minimum(unlimited, reach),", "unlimited,"),
        (
            "self.served_error(x, label, rivals, reach), tf.float64",
            "np.zeros(reach.shape), tf.float64",
        ),
        ("(radius - displaced) * _INWARD", "radius * _INWARD"),
        ("(radius - displaced) * _INWARD", "(radius - displaced)"),
        ("np.where(displaced == 0.0, radius,", "np.where(displaced != 0.0, radius,"),
    ),
    CRC + "rival_search": (
        (
            "self._geometry.step(found, place, taken_off)",
            f"self._geometry.step(found, place, {NO_ERROR})",
        ),
        ("point - tf.gather(batch.x0, rows), self", "0.0 * point, self"),
        (
            "self._network.margin(beyond, label, rival) <= 0.0",
            "self._network.margin(beyond, label, rival) >= 0.0",
        ),
    ),
    CRC + "geometry": (
        (
            "tf.expand_dims(place.curvature, 1), tf.expand_dims(taken_off, 1)",
            f"tf.expand_dims(place.curvature, 1), tf.expand_dims({NO_ERROR}, 1)",
        ),
    ),
    CRC + "geometries": (
        (
            "proved_radius(found, None, curvature, taken_off)",
            f"proved_radius(found, None, curvature, {NO_ERROR})",
        ),
        (
            "charged_minorant(found, None, curvature, taken_off)",
            f"charged_minorant(found, None, curvature, {NO_ERROR})",
        ),
        (
            "columns = tf.expand_dims(kappa, 1), tf.expand_dims(taken_off, 1)",
            f"columns = tf.expand_dims(kappa, 1), tf.expand_dims({NO_ERROR}, 1)",
        ),
        (
            "found, place.displacement, kappa, tf.expand_dims(taken_off, 1)",
            f"found, place.displacement, kappa, tf.expand_dims({NO_ERROR}, 1)",
        ),
        ("            tf.reshape(slope_error, shape),\n", ""),
        ("room, multiplier, slope_error)", "room, multiplier)"),
        ("bound.curvature, room, slope_error)", "bound.curvature, room)"),
        ("dual.certified_radius(simple) * _INWARD", "dual.certified_radius(simple)"),
        ("dual.certified_radius(proved) * _INWARD", "dual.certified_radius(proved)"),
        (
            "dual.certified_radius(simple) * (1.0 - rounding.gamma(32))",
            "dual.certified_radius(simple)",
        ),
    ),
    CRC + "ball_step": (
        ("kappa += CURVATURE_FLOOR", "pass"),
        (
            "self._geometry.in_ball(found, place, error)",
            "self._geometry.in_ball(found, place, 0.0 * error)",
        ),
        (" * (1.0 + gamma(entries + 8.0)) <= radius", " <= radius"),
        (" * (1.0 + gamma(entries + 8.0)) <= radius", " >= radius"),
        ("tf.where(inside, proved, 0.0)", "proved"),
    ),
    CRC + "crc_local": (
        ("np.minimum(best, radius[of])", "best"),
        ("np.maximum(known[of, column], np.minimum", "np.minimum(known[of, column], np.minimum"),
        ("known < radius[:, None]", "known > radius[:, None]"),
        (
            "(kappa[rows], radius[of[rows]], error[rows])",
            "(kappa[rows], radius[of[rows]], 0.0 * error[rows])",
        ),
        (
            "up(self._served_error(x, label, rivals, each))",
            "self._served_error(x, label, rivals, each)",
        ),
        (
            "prove(many, self.local_curvature.shared_bound)",
            "prove(many, self.local_curvature.estimate)",
        ),
        ("prove(rows, self.local_curvature.bound)", "prove(rows, self.local_curvature.estimate)"),
    ),
    CRC + "two_stage": (
        ("(found.radius - error[:, None])", "found.radius"),
        (" / self.lipschitz * (1.0 - gamma(8))", " / self.lipschitz"),
        (" / self.lipschitz * (1.0 - gamma(8))", " * (1.0 - gamma(8))"),
        (
            "np.where(radius > 0.0, np.minimum(radius, most), 0.0)",
            "np.where(radius > 0.0, radius, 0.0)",
        ),
        ("activation_errors(self._norms, found)[-1]", "activation_errors(self._norms, found)[0]"),
    ),
}
TESTS = {
    COUPLING: ("tests/certificates/test_coupling.py",),
    "numerics.rounding": (TERMS, CHARGES),
    "dual": (TERMS,),
    CRC + "proved_radius": (CHARGES,),
    CRC + "in_cube": (CUBES,),
    "threats.norms": (OF_NORMS, CUBES, IN_NORMS + "what_serving_takes_off_is_charged"),
    "certificates.other_norms": (
        IN_NORMS + "what_serving_takes_off_is_charged",
        IN_NORMS + "radii_of_every_pair_hold",
        IN_NORMS + "a_gradient_of_folded_weights_is_charged",
    ),
    "curvature.liplt_in_norm": (OF_NORMS,),
    "curvature.in_norm": (
        IN_NORMS + "folded_weights_are_charged",
        IN_NORMS + "folded_weights_are_charged_behind_the_first_layer",
        IN_NORMS + "curvature_in_a_norm",
        IN_NORMS + "curvature_through_equal_units",
    ),
    "certificates.lipschitz": (LIPSCHITZ, OF_NORMS),
}  # of all others, PROOFS
# What no test can notice, and why it makes no proof wrong.
SPARED = {
    (COUPLING, "Coupling.linear: terms + … left out"): "NumPy adds in pairs",
    (
        COUPLING,
        "Coupling.linear: … + self.far left out",
    ): "norms of rows have a floor far above what underflows",
    (COUPLING, "Coupling.turned: terms + … left out"): "NumPy adds in pairs",
    (COUPLING, "Coupling.rounding: terms + … left out"): "NumPy adds in pairs",
    (COUPLING, "Coupling.rounding: 4.0 * self.far ** 2 + … left out"): (
        "at a least place λ|s − ẑ| is no more than |G| or |G − Λ|"
    ),
    (CRC + "in_cube", "least_concave: terms + … left out"): (
        "NumPy adds in pairs; the charge is for any order"
    ),
    ("dual", "certified_radius: (a > 0.0) & tf.math.is_finite(a) → a > 0.0"): (
        "the root of an infinite A is NaN"
    ),
    ("dual", "certified_radius: (a > 0.0) & … left out"): "the root of a negative A is NaN",
    ("dual", "certified_radius: tf.where(proves, a, 0.0) → a"): "it keeps gradients from NaN",
    ("dual", "certified_radius: proves & … left out"): "A is 0 there, and so is the root",
    ("dual", "_scaled: usual | (largest == 0.0) → largest == 0.0"): "any scale would do",
}
