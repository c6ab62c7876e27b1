"""A layer that calls a function, for ops that no layer of Keras makes."""

import keras


@keras.saving.register_keras_serializable("tests")
class FunctionLayer(keras.layers.Layer):
    """A function as a layer."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)
