"""Code that depends on the Keras backend: loading, compilation and devices."""
