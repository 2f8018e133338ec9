"""Problems: corpora, their preparation and their scores."""

from keras_transformer.tasks.problem import Problem, load_problem, require, setting

__all__ = ["Problem", "load_problem", "require", "setting"]
