"""Test that a new process can load a saved model and continue its training."""

import functools
import re
import subprocess
import sys

import keras
import numpy as np
from helpers.commands import environment
from helpers.small_transformer import DECODER_INPUT, INPUTS, LABELS, SOURCE, WEIGHTS, make_model, values

from keras_transformer.config import registry

IMPORTS = {  # the two documented ways to import the classes
    "tensorflow": "import keras, keras_transformer",
    "jax": "from keras_transformer import Transformer; import keras",
}
LOADS = """
import sys, numpy
model = keras.models.load_model(sys.argv[1], safe_mode=True)
data = numpy.load(sys.argv[2])
inputs = data["source"], data["decoder_input"]
model.fit(inputs, data["labels"], sample_weight=data["weights"], shuffle=False, verbose=0)
variables = {variable.path: variable for variable in (*model.variables, *model.optimizer.variables)}
numpy.savez(sys.argv[3], **{path: keras.ops.convert_to_numpy(variable) for path, variable in variables.items()})
print(*keras.saving.get_custom_objects())
"""


def test_compiled_model_continues_training_in_new_process(tmp_path):
    model = make_model(compile=True, dropout=0.3, clip_norm=1.0, ema_decay=0.9, warmup_steps=10)
    fit = functools.partial(model.fit, INPUTS, LABELS, sample_weight=WEIGHTS, shuffle=False, verbose=0)
    fit(epochs=2, callbacks=[keras.callbacks.ModelCheckpoint(tmp_path / "m.keras")])
    fit()
    np.savez(tmp_path / "data.npz", source=SOURCE, decoder_input=DECODER_INPUT, labels=LABELS, weights=WEIGHTS)
    backend, files = keras.backend.backend(), (tmp_path / name for name in ("m.keras", "data.npz", "after.npz"))
    process = subprocess.run(
        [sys.executable, "-c", IMPORTS[backend] + LOADS, *files],
        cwd=tmp_path, env={**environment(tmp_path), "KERAS_BACKEND": backend}, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    found, expected = np.load(tmp_path / "after.npz"), values([*model.variables, *model.optimizer.variables])
    assert expected["adam/iteration"] == 3 and found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-7, err_msg=path)
    registered = process.stdout.splitlines()[-1].split()
    sources = "\n".join(path.read_text() for path in registry.PACKAGE.rglob("*.py"))
    classes = re.findall(
        r'^@keras.saving.register_keras_serializable\("keras_transformer"\)\nclass (\w+)', sources, re.M
    )
    assert len(classes) > 15 and {f"keras_transformer>{name}" for name in classes} <= {*registered}
