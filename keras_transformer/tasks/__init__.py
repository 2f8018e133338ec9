"""Problems, each of which defines a corpus, its preparation and its scores."""

from keras_transformer.tasks.problem import Problem, load_problem, require, setting

__all__ = ["Problem", "load_problem", "require", "setting"]
