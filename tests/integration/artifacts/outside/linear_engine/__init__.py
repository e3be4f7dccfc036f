"""An engine of another package: a linear model in NumPy, whose weights come from a SavedModel's variables."""

from rankline.serving.engines import Engine

ENGINE = Engine(name="linear", package=__name__, format="model.npz", converts=("model.savedmodel",))
