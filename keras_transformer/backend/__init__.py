"""What depends on the Keras backend: choosing it, compiling functions, listing devices."""
