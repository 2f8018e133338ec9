"""Folders of the project and of the real corpora."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / (os.environ.get("KERAS_TRANSFORMER_TEST_DATA") or "../shared/data")
