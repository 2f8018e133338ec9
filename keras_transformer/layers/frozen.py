"""Frozen sublayers in the configuration of a layer. Keras stores `trainable` only for the layer itself."""


def with_frozen(config, layer):
    """Return the configuration of a layer, with the indices of its frozen sublayers if there are any."""
    frozen = [i for i, part in enumerate(_sublayers(layer)) if not part.trainable]
    return {**config, "frozen": frozen} if frozen else config


def from_frozen(layer_class, config):
    """Return a new layer with the configuration from `with_frozen`."""
    frozen = set(config.get("frozen", ()))
    layer = layer_class(**{name: value for name, value in config.items() if name != "frozen"})
    for i, part in enumerate(_sublayers(layer)):
        if i in frozen:
            part.trainable = False
    return layer


def _sublayers(layer):
    return layer._flatten_layers(include_self=False)
