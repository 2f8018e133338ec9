"""Import of pretrained models from other toolkits."""
