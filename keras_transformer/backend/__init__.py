"""Code that depends on the Keras backend: loading it, compiling functions, listing devices."""
