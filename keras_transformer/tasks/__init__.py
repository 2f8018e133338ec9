"""Problems, each of which defines a corpus, its preparation and its scores."""

from keras_transformer.tasks.problem import Problem, load_problem, setting
from keras_transformer.utils.errors import require

__all__ = ["Problem", "load_problem", "require", "setting"]
