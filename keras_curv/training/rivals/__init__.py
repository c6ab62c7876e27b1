"""Published trainings to compare with, one method a file.

Example:
    >>> import keras, tensorflow as tf
    >>> from keras_curv.training.rivals import coap, crown_ibp, noise, pgd, trades
    >>> dense = keras.layers.Dense
    >>> base = keras.Sequential([keras.Input((4,)), dense(8, "relu"), dense(3)])
    >>> methods = pgd.PGDModel, trades.TRADESModel, crown_ibp.CROWNIBPModel, coap.COAPModel
    >>> for model in (*(m(base, radius=0.5) for m in methods), noise.NoiseModel(base, 0.25)):
    ...     model.compile("adam")
    ...     history = model.fit(tf.zeros((8, 4)), tf.range(8) % 3, verbose=0)
    ...     print(*sorted(history.history))
    attack_accuracy clean_accuracy loss
    attack_accuracy clean_accuracy divergence loss
    certified clean_accuracy loss
    certified clean_accuracy loss
    clean_accuracy loss noisy_accuracy
"""
